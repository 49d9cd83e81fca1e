"""A new file in a store that takes whole files: written here first, and there when it is closed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, cast

SPOOLED = 32 << 20
"""Bytes of a file that are kept in memory; a larger one goes to a temporary file."""


def spooled() -> BinaryIO:
    """A file of this process, empty, open for writing and reading."""
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(SPOOLED))


class Uploaded:
    """Open for writing; ``upload`` gets everything when it is closed, and nothing after an error."""

    def __init__(self, upload: Callable[[BinaryIO], None]) -> None:
        self._upload = upload
        self._content = spooled()
        self.closed = False

    def write(self, data: Any) -> int:
        return self._content.write(bytes(data))

    def tell(self) -> int:
        return self._content.tell()

    def flush(self) -> None:
        """What was written is there when it is closed."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._content.seek(0)
            self._upload(self._content)
            self._content.close()

    def __enter__(self) -> Uploaded:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._content.close()
