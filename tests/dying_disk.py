"""A disk under a process that dies between a change and its sync."""

from __future__ import annotations

from pathlib import Path

from connectors.testing.forgetful_disk import ForgetfulDisk


class DyingDisk(ForgetfulDisk):
    """Dies once, before it makes durable what all can see in a folder: a file of the pattern ``dies_before``."""

    dies_before = ""

    def sync(self, path: Path) -> None:
        if self.dies_before and list(path.glob(self.dies_before)):
            self.dies_before = ""
            raise KeyboardInterrupt
        super().sync(path)
