"""Readers of a subscription are killed at each point of an epoch: what they hold comes again when its deadline has passed."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from connectors.systems.pubsub import PubSubSource
from connectors.testing import same_records
from connectors.testing.contexts import open_context
from connectors.testing.faults import EPOCH_POINTS, Action, FailureInjector, faulty_source
from connectors.testing.source_suite import SourceQuery

from .kills import ShortDeadlineContext

pytestmark = pytest.mark.server
DEADLINE = 11.0


class Subscription(NamedTuple):
    """What a process is told of a subscription, as a context tells it; a context would make a new one."""

    values: Mapping[str, str]
    schema: pa.Schema

    def options(self) -> Mapping[str, str]:
        return self.values


def read(subscription: Any, folder: Path) -> None:
    """Goes on with a query until nothing is new. ``folder`` has its faults, its offsets, and the rows of each batch."""
    source = faulty_source(PubSubSource, FailureInjector(folder / "faults"))
    query = SourceQuery(subscription, source, numPartitions="1")
    offsets = folder / "offsets"
    log = json.loads(offsets.read_text()) if offsets.exists() else []
    number = len(batches(folder))
    while number < len(log) or query.plan(log) is not None:
        offsets.write_text(json.dumps(log))
        rows = query.batch(log, number)
        (folder / f"{number:04d}.batch").write_bytes(pickle.dumps(rows))
        number += 1
        if not rows:
            return


def batches(folder: Path) -> list[list[dict[str, Any]]]:
    return [pickle.loads(file.read_bytes()) for file in sorted(folder.glob("*.batch"))]


@pytest.mark.soak
def test_readers_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    injector = FailureInjector(tmp_path / "faults")
    with open_context(ShortDeadlineContext, tmp_path / "system") as system:

        def exit_code() -> int | None:
            # gRPC does not survive a fork
            arguments = Subscription(system.options(), system.schema), tmp_path
            process = multiprocessing.get_context("spawn").Process(target=read, args=arguments)
            process.start()
            process.join(60)
            return process.exitcode

        written, deadlines = [], []
        for point in EPOCH_POINTS:
            written += system.write(5)
            injector.arm(point, Action.KILL)
            assert exit_code() == -signal.SIGKILL, point
            deadlines.append(time.monotonic() + DEADLINE)
        assert len([row for rows in batches(tmp_path) for row in rows]) < len(written)
        time.sleep(max(0.0, deadlines[0] - time.monotonic()))
        assert exit_code() == 0
        same_records(written, [row for rows in batches(tmp_path) for row in rows])
