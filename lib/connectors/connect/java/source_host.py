"""A Java source connector and its tasks, in a child JVM of the process that plans the query."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from ...core.source import ReadLimit
from ...ground import machine
from ...ground.errors import Fatal, Problem
from ...ground.state import dumps
from ..host import ConnectorSettings, Groups, Offsets, SourceHost, TaskRecords, TaskStatus, refused_offsets
from . import source_engine
from .debezium import (
    bound_of,
    is_debezium,
    offset_store,
    refuse_slot,
    slot_facts,
    slot_of,
    snapshot_facts,
    with_defaults,
)
from .failures import failure_of
from .jars import plugin_class_path
from .jvm import Jvm, JvmDied
from .publication import refuse_publication
from .source_engine import SourceEngine, pause
from .validation import connector_jvm, validated

_WAIT_SECONDS: Final = 0.5
_FIRST_LOOK_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 10.0
"""The seconds before the first look at a replication slot, and between two later ones."""
_log = logging.getLogger("connectors.connect")


class JavaSourceHost(SourceHost):
    """Runs a Java source; a JVM that dies, hangs or fills its memory is replaced, from what was handed over last."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self.settings = settings
        self.properties = with_defaults(settings.properties)
        self.restarts = 0
        self._offsets: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._end: int | None = None
        """The end of the database's log at the start, if that is known."""
        self._begin = machine.time()
        self._jvm: Jvm | None = None
        self._engine: SourceEngine | None = None
        self._jars: list[str] = []
        self._generation = 0
        self._jvm_failures = 0
        self._is_quiet = False
        self._closing = machine.event()
        self._folder: Path | None = None
        self._slot: dict[str, Any] = {}

    def validate(self) -> list[Problem]:
        return validated(self.settings, sink=False)

    def slot(self) -> str:
        return slot_of(self.properties)

    def check_first_start(self) -> None:
        self._check("look at the publication", partial(refuse_publication, is_first=True))
        self._check("look for a replication slot", refuse_slot)

    def alter_offsets(self, offsets: Offsets) -> bool:
        pairs = dumps([[json.loads(partition), offset] for partition, offset in offsets.items()])

        def ask() -> bool:
            jvm = self._started_jvm()
            with jvm.within(source_engine.START_SECONDS, "alter the offsets"):
                connector = jvm.instance(self.properties["connector.class"])
                return bool(connector.alterOffsets(self.properties, offset_store(jvm, self.properties).offsets(pairs)))

        try:
            return bool(self._retried(ask))
        except Py4JJavaError as error:
            raise refused_offsets(str(failure_of(error, self._started_jvm().masked)), self.settings.log) from None

    def start(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        if added := sorted(f"{key}={self.properties[key]}" for key in self.properties.keys() - self.settings.properties.keys()):
            _log.info("%s: set in place of defaults that lose values: %s", self.settings.log, ", ".join(added))
        self._offsets, self._groups = dict(offsets), dict(groups)
        self._check("look at the publication", refuse_publication)
        self._retried(self._start_engine)
        self._generation = 1
        if self.slot():
            machine.thread(self._look_at_slot, f"{self.settings.log}-slot").start()

    def poll(self, epoch: int, limit: ReadLimit, seconds: float) -> list[TaskRecords]:
        until = machine.monotonic() + (0.0 if self._is_quiet else seconds)
        while True:
            records = self._retried(lambda: self._running().poll(epoch, limit, self._wait(until)))
            if records:
                self._jvm_failures = 0
                for task in records:
                    self._offsets.update(task.offsets)
                    self._groups.update(task.groups)
                return self._counted(records)
            if self._closing.is_set() or machine.monotonic() >= until:
                return []

    def idle_seconds(self) -> float:
        return 0.0 if self._engine is None else self._engine.idle_seconds()

    def has_caught_up(self, seconds: float) -> bool:
        if self._engine is None:
            return False
        try:
            return self._engine.has_caught_up(self._offsets, self._end, self._begin, seconds)
        except JvmDied:
            return False

    def committed(self, epoch: int) -> None:
        if self._engine is not None:
            try:
                with self._engine.jvm.within(source_engine.START_SECONDS, "commit"):
                    self._engine.commit(epoch)
            except JvmDied as death:
                _log.warning("%s", death)  # the next poll starts another one, from the recorded offsets

    def reconfiguration_requested(self) -> bool:
        try:
            return self._engine is not None and self._engine.requests_reconfiguration()
        except JvmDied:
            return False

    def quiesce(self) -> None:
        self._is_quiet = True
        if self._engine is not None:
            self._engine.quiesce()

    def reconfigure(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        self._offsets, self._groups, self._is_quiet = dict(offsets), dict(groups), False
        self._retried(lambda: self._running().reconfigure(self._offsets, self._groups))
        self._generation += 1

    def statuses(self) -> list[TaskStatus]:
        return [] if self._engine is None else self._engine.statuses()

    def facts(self) -> Mapping[str, Any]:
        engine, facts = self._engine, dict(self._slot)
        if engine is not None and is_debezium(self.properties):
            with contextlib.suppress(JvmDied, Py4JJavaError), engine.jvm.within(source_engine.CALL_SECONDS, "tell its rows"):
                facts |= snapshot_facts(engine.jvm)
        return facts

    def generation(self) -> int:
        return self._generation

    def close(self) -> None:
        self._closing.set()
        engine, jvm, folder = self._engine, self._jvm, self._folder
        self._engine = self._jvm = self._folder = None
        if engine is not None and jvm is not None and jvm.is_alive():
            engine.stop()
        if jvm is not None:
            jvm.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        """The process of the JVM, for tests and messages."""
        return self._jvm.pid if self._jvm is not None else None

    def _look_at_slot(self) -> None:
        """Runs in a thread: a database that does not answer delays no row."""
        pause, is_told = _FIRST_LOOK_SECONDS, False
        while not self._closing.wait(pause):
            engine, pause = self._engine, _LOOK_SECONDS
            facts = {} if engine is None else slot_facts(engine.log)
            bound = facts.pop("bound", None)
            self._slot = facts
            if bound is not None and not is_told:
                _log.log(*bound_of(self.slot(), bound))
                is_told = True

    def _check(self, what: str, refuse: Callable[[Jvm, Mapping[str, str], str], None]) -> None:
        def check() -> None:
            jvm = self._started_jvm()
            with jvm.within(source_engine.START_SECONDS, what):
                refuse(jvm, self.properties, self.settings.log)

        self._retried(check)

    def _start_engine(self) -> None:
        jvm = self._started_jvm()
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="connect-"))
        self._engine = SourceEngine(jvm, self.settings, self.properties, self._folder)
        if self._end is None:
            self._end = self._engine.end()
        self._engine.start(self._offsets, self._groups)

    def _started_jvm(self) -> Jvm:
        self._jars = self._jars or plugin_class_path(self.settings.plugin_path, self.settings.plugin_packages)
        if self._jvm is None or not self._jvm.is_alive():
            self._jvm = connector_jvm(self.settings, self._jars)
        return self._jvm

    def _running(self) -> SourceEngine:
        if self._engine is None:
            self._start_engine()
        engine = self._engine
        assert engine is not None
        if not engine.jvm.is_alive():
            raise engine.jvm.death("run")
        return engine

    def _retried(self, work: Any) -> Any:
        """``work``, done again with a new JVM when it dies. Raises :class:`Fatal` when it dies too often in a row."""
        while True:
            try:
                return work()
            except JvmDied as death:
                if self._engine is not None:
                    self._engine.abandon()
                self._engine, self._jvm = None, None
                if self._closing.is_set():
                    return []
                self._jvm_failures += 1
                self.restarts += 1
                _log.warning("%s", death)
                if self._jvm_failures > self.settings.restarts:
                    text = f"{death.message}; it was started {self._jvm_failures} times"
                    raise Fatal(text, connector=self.settings.log) from None
                self._closing.wait(pause(self.settings, self._jvm_failures))

    def _wait(self, until: float) -> float:
        return max(0.0, min(_WAIT_SECONDS, until - machine.monotonic()))

    def _counted(self, records: list[TaskRecords]) -> list[TaskRecords]:
        """With the restarts of the JVM since the last records in the counts of the first task."""
        if not self.restarts:
            return records
        first, restarts = records[0], self.restarts
        self.restarts = 0
        counts = {**first.counts, "restarts": first.counts.get("restarts", 0) + restarts}
        return [replace(first, counts=counts), *records[1:]]
