"""``python -m connectors offsets``: where the sources of a query stand, and how to move them.

Spark plans the batch after the last committed one from that one's entry in the checkpoint's folder ``offsets``. A move writes
this entry again, in one step: whatever dies, the query goes on at the old place or at the new one. (``hdfs://`` has no such
step: a death in it leaves no entry.) No batch is added, and no sink, ledger or system is touched.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from connectors.core.epoch_source import EpochLogSource
from connectors.core.epochs import EpochLog
from connectors.core.planning import INITIAL
from connectors.core.progress import PartitionProgress, unpacked
from connectors.ground.errors import Misconfigured, Problem, StateError
from connectors.ground.state import dumps
from connectors.storage.location import checked_storage
from connectors.systems import all_systems
from connectors.systems.connect.source import ConnectSource

_COMMAND: Final = "connectors offsets"
_KAFKA: Final = ("kafka", "event_hubs")
"""The sources of which a position has offsets by topic and partition."""
_CONNECT: Final = ConnectSource.name
_NONE: Final = "-"
"""What stands in an entry for a source that has no offset yet."""


@dataclass(frozen=True)
class SourceOffset:
    """The offset of a query's source: ``name`` tells the query's sources apart, ``value`` is the JSON as Spark keeps it.

    That is an object, or a number for sources such as ``rate``, which are not moved.
    """

    name: str
    value: Any

    @property
    def system(self) -> str:
        """The name of the connector; empty for a source that is not of this library."""
        is_own = isinstance(self.value, Mapping) and {"v", "source", "at"} <= self.value.keys()
        return str(self.value["source"]) if is_own else ""

    @property
    def position(self) -> Any:
        """The position, in the form that :meth:`move` takes; ``None`` before the first record."""
        if self.value is None or self.value == INITIAL:
            return None
        if not self.system:
            return self.value
        at = dict(self.value["at"])
        if at.get("positions", {}) is None:  # after a reset
            return None
        if self.system in _KAFKA:
            return {topic: dict(partitions["at"]) for topic, partitions in at["topics"].items()}
        return at

    def partitions(self) -> list[PartitionProgress]:
        """What the source has told of its partitions."""
        return unpacked(self.value) if self.system and self.value else []

    def move(self, to: Mapping[str, Any], log: EpochLog | None = None) -> SourceOffset:
        """The offset with another position: ``to`` names what changes, in the form of :attr:`position`.

        ``log`` is needed by a source that has its positions there: ``to`` names partitions then, each with its whole position.
        Raises :class:`Misconfigured`.
        """
        position = self._known_position()
        if self._log_source() is not None:
            known = self.log_positions(log)
            change = {name: place for name, place in to.items() if name not in known or known[name] != place}
            if self.has_connector:  # which looks at what is in an offset
                _merged(dict.fromkeys(known), change)
                if wrong := next((item for item in change.items() if not isinstance(item[1], (Mapping, NoneType))), None):
                    text = f'gives "{wrong[0]}" {dumps(wrong[1])[:100]}; an offset is an object, or null to begin anew.'
                    raise _refused("--to-offset", text)
            else:
                example = next((place for place in known.values() if place is not None), None)
                _merged({name: example if place is None else place for name, place in known.items()}, change)
            return self._at({**self._epoch_of(log), "positions": {**position.get("positions", {}), **change}})
        if self.system == "files":
            text = f"cannot move source {self.name}: it knows files by their names. Copy those to read again, or reset it."
            raise _refused("--to-offset", text)
        target = _merged(position, to)
        if not self.system:
            return SourceOffset(self.name, target)
        if self.system not in _KAFKA:
            return self._at(target)
        assert self.value is not None
        topics = {
            topic: {**{key: part for key, part in state.items() if key != "from"}, "at": target[topic]}
            for topic, state in self.value["at"]["topics"].items()
        }
        return self._at({**self.value["at"], "topics": topics})

    def log_positions(self, log: EpochLog | None) -> Mapping[str, Any]:
        """The position of each partition, by the epoch log; empty for a source without one.

        That of a partition that is read to its end is not known any more: ``None``.
        """
        if (kind := self._log_source()) is None:
            return {}
        position = self._known_position()
        positions = kind.positions_after(self._required(log, position), position["epoch"])
        return {**positions, **position.get("positions", {})}

    def shift(self, by: int) -> SourceOffset:
        """The offset with the number of each partition changed by ``by``, not below 0. Raises :class:`Misconfigured`."""
        position = self._known_position()
        numbers = [value for partitions in position.values() if isinstance(partitions, dict) for value in partitions.values()]
        if not numbers or not all(type(number) is int for number in numbers) or self.system not in ("", *_KAFKA):
            raise _refused("--shift-by", f"moves the offsets of Kafka; source {self.name} stands at {dumps(position)[:200]}.")
        return self.move({
            topic: {partition: max(0, number + by) for partition, number in partitions.items()}
            for topic, partitions in position.items()
        })  # fmt: skip

    def begin(self, start: Mapping[str, Any], options: Mapping[str, Any], option: str) -> SourceOffset:
        """The offset where Kafka says that ``start`` is: options of a new query, such as ``startingOffsets``.

        ``options`` are the query's own; ``option`` names the flag in messages. A partition that the query does not know yet is
        left out: the query reads it from its first record. Raises :class:`Misconfigured`, and the errors of the source.
        """
        position = self._known_position()
        if self.system not in ("", *_KAFKA) or not all(isinstance(value, dict) for value in position.values()):
            raise _refused(option, f"asks Kafka for offsets; source {self.name} stands at {dumps(position)[:200]}.")
        kind = all_systems()[self.system or "kafka"][0]
        assert kind is not None, "both are sources"
        own = {name: value for name, value in options.items() if not name.lower().startswith(("starting", "ending"))}
        with contextlib.closing(kind.of({**own, **start}, streaming=True).enumerator()) as enumerator:
            topics = enumerator.start()["topics"]
        there = {topic: topics.get(topic, {"at": {}})["at"] for topic in position}
        if missing := [f"{topic} {part}" for topic, parts in position.items() for part in parts if part not in there[topic]]:
            text = f"are of another query: they do not read {', '.join(missing)}, as source {self.name} does."
            raise _refused("--options", text)
        moved = self.move({topic: {part: there[topic][part] for part in parts} for topic, parts in position.items()})
        if not self.system:
            return moved
        ids = {topic: {"id": topics[topic]["id"]} for topic in position if "id" in topics[topic]}  # it may be made anew
        states = {topic: {**state, **ids.get(topic, {})} for topic, state in moved.value["at"]["topics"].items()}
        return self._at({**moved.value["at"], "topics": states})

    def reset(self, log: EpochLog | None = None) -> SourceOffset:
        """The offset of a source that begins anew, where its options say. ``log`` as in :meth:`move`.

        Raises :class:`Misconfigured`.
        """
        self._known_position()
        if not self.system:
            raise _refused("reset", f"begins sources of connectors.* anew; give source {self.name} a place by set --to-offset.")
        if self._log_source() is not None:
            return self._at({**self._epoch_of(log), "positions": None})
        return SourceOffset(self.name, INITIAL)

    @property
    def has_connector(self) -> bool:
        """True for a connector of Connect's model, which is asked before a move: see :meth:`ask`."""
        return self.system == _CONNECT

    def ask(self, log: EpochLog | None, options: Mapping[str, Any]) -> bool:
        """Asks a connector of Connect's model whether it can begin here; ``options`` are those of the source.

        Returns whether it has looked: also true for other sources. Raises :class:`Misconfigured` for the options, and the
        connector's refusal.
        """
        if not self.has_connector or self.value is None:
            return True
        at = self.value["at"]
        positions = at["positions"]
        if positions is None:
            assert log is not None, "the reset has needed it"
            positions = dict.fromkeys(ConnectSource.positions_after(log, at["epoch"]))
        source = ConnectSource.of(options, streaming=True)
        assert isinstance(source, ConnectSource)
        return source.alter_offsets(positions)

    def _at(self, position: Mapping[str, Any]) -> SourceOffset:
        rest = {key: value for key, value in (self.value or {}).items() if key in ("v", "source", "parts")}
        return SourceOffset(self.name, {**rest, "at": dict(position)})

    def _epoch_of(self, log: EpochLog | None) -> dict[str, Any]:
        """The part of an offset that names the epoch, behind which none is planned."""
        position = self._known_position()
        log = self._required(log, position)
        if log.plan(position["epoch"] + 1) is not None:
            text = f"is older than {log.storage.root}, which has planned the next epoch of source {self.name} already."
            raise _refused("CHECKPOINT", f"{text} Start the query, so that it finishes that, and stop it.")
        return {"epoch": position["epoch"], "log": position["log"]}

    def _required(self, log: EpochLog | None, position: Mapping[str, Any]) -> EpochLog:
        if log is None:
            raise _refused("--state-location", f"is missing; it has the positions of source {self.name}.")
        log.check(position["log"])
        return log

    def _known_position(self) -> Mapping[str, Any]:
        if self.position is None:
            raise _refused("CHECKPOINT", f"source {self.name} has not read anything yet: its options say where it begins.")
        if not isinstance(self.position, Mapping):
            text = f"source {self.name} stands at {dumps(self.position)[:200]}, which has no parts to move."
            raise _refused("CHECKPOINT", text)
        return self.position

    def _log_source(self) -> type[EpochLogSource] | None:
        """The class of a source with its positions in an epoch log. Raises :class:`Misconfigured` where the system has them."""
        kind = all_systems().get(self.system, (None, None))[0] if self.system else None
        if self.system and kind is None and "epoch" in (self.position or {}):
            raise _refused("CHECKPOINT", f"is of connectors.{self.system}, which is not installed here.")
        if kind is None or not issubclass(kind, EpochLogSource):
            return None
        if not kind.keeps_positions:
            text = f"is of connectors.{self.system}, whose system keeps the position: move it there (seek, the id of a group)."
            raise _refused("CHECKPOINT", text)
        return kind


def _merged(position: Mapping[str, Any], change: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """``position`` with the values of ``change``, which has the same names and kinds. Raises :class:`Misconfigured`."""
    merged = dict(position)
    for name, value in change.items():
        path = f"{place}{name}"
        if name not in position:
            known = ", ".join(sorted(map(str, position)))
            raise _refused("--to-offset", f'names "{path}", which the source does not have. There is {known or "nothing"}.')
        before = position[name]
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(before, value, f"{path}.")
        elif before is not None and type(before) is not type(value):
            text = f'gives "{path}" {dumps(value)[:100]}; it is like {dumps(before)[:100]} now.'
            raise _refused("--to-offset", text)
        elif place and type(value) is int and value < 0 <= before:
            raise _refused("--to-offset", f'gives "{path}" {value}; a position is 0 or above.')
        else:
            merged[name] = value
    return merged


def is_behind(position: Any, other: Any) -> bool:
    """True if ``position`` may be behind the ``other`` of the same source: only numbers say that they are not."""
    if isinstance(position, Mapping) and isinstance(other, Mapping):
        return any(is_behind(position.get(name), other.get(name)) for name in position.keys() | other.keys())
    return position < other if type(position) is int and type(other) is int else bool(position != other)


def epoch_log(offset: SourceOffset, state_location: str | None, storage_options: Mapping[str, Any]) -> EpochLog | None:
    """The epoch log of a source in its ``stateLocation``, if that is named. Raises :class:`Misconfigured`."""
    if state_location is None:
        return None
    return EpochLog(checked_storage(_COMMAND, "--state-location", state_location, storage_options), offset.system)


def _refused(option: str, text: str) -> Misconfigured:
    return Misconfigured(_COMMAND, [Problem(option, text)])


@dataclass(frozen=True)
class Entry:
    """An entry of the folder ``offsets``: the batch, Spark's version of the format and metadata, and an offset per source."""

    batch: int
    version: str
    metadata: str
    sources: tuple[SourceOffset, ...]

    @classmethod
    def of(cls, batch: int, text: str) -> Entry:
        """The entry of a file's ``text``. Raises :class:`StateError` for a format that is not known."""
        version, metadata, *lines = text.split("\n")
        if version not in ("v1", "v2"):
            raise StateError(
                f"entry {batch} of the checkpoint's offsets has the format {version[:20]!r}; v1 and v2 are known",
                way_out="run a version of this library that knows the format",
            )
        named = [line.partition(":")[::2] if version == "v2" else (str(number), line) for number, line in enumerate(lines)]
        with _readable(batch):
            sources = tuple(SourceOffset(name, None if value == _NONE else json.loads(value)) for name, value in named)
        return cls(batch, version, metadata, tuple(sorted(sources, key=lambda source: source.name.zfill(9))))

    @property
    def time(self) -> float:
        """When the batch was planned, in seconds since 1970."""
        with _readable(self.batch):
            return float(json.loads(self.metadata)["batchTimestampMs"]) / 1000

    def source(self, name: str | None) -> SourceOffset:
        """The source called ``name``; ``None`` for the only one. Raises :class:`Misconfigured`."""
        names = [source.name for source in self.sources]
        if name is None and len(names) > 1:
            raise _refused("--source", f"is missing; the query has {len(names)} sources: {', '.join(names)}.")
        found = next((source for source in self.sources if name in (None, source.name)), None)
        if found is None:
            raise _refused("--source", f'must be one of {", ".join(names)}; got "{name}".')
        return found

    def with_source(self, changed: SourceOffset) -> Entry:
        """The entry with another offset of the source that has the same name."""
        sources = tuple(changed if source.name == changed.name else source for source in self.sources)
        return Entry(self.batch, self.version, self.metadata, sources)

    def text(self) -> str:
        """The content of the file."""
        values = [_NONE if source.value is None else json.dumps(source.value) for source in self.sources]
        names = [f"{source.name}:" if self.version == "v2" else "" for source in self.sources]
        return "\n".join([self.version, self.metadata, *map(str.__add__, names, values)])


@contextlib.contextmanager
def _readable(batch: int) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise StateError(
            f"entry {batch} of the checkpoint's offsets cannot be read: {error}", way_out="restore the checkpoint from a copy"
        ) from error


class Checkpoint:
    """The checkpoint of a query that does not run. Raises :class:`Misconfigured` where there is none."""

    def __init__(self, location: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.storage = checked_storage(_COMMAND, "CHECKPOINT", location, storage_options or {})
        try:
            self.query = str(json.loads(self.storage.read("metadata"))["id"])
        except (FileNotFoundError, LookupError, TypeError, ValueError) as error:
            text = f"has no checkpoint of a query: {location} ({type(error).__name__}). Give its checkpointLocation."
            raise _refused("CHECKPOINT", text) from None

    @property
    def committed(self) -> int | None:
        """The last batch that is committed."""
        return max(self._batches("commits"), default=None)

    @property
    def planned(self) -> int | None:
        """The batch that is planned and not committed, if there is one."""
        newest = max(self._batches("offsets"), default=None)
        return newest if newest is not None and newest != self.committed else None

    def entry(self, batch: int) -> Entry:
        """The entry of a batch. Raises :class:`StateError`."""
        with _readable(batch):
            try:
                return Entry.of(batch, self.storage.read(f"offsets/{batch}").decode())
            except FileNotFoundError as missing:
                raise LookupError("the file is missing") from missing

    def movable(self) -> Entry:
        """The entry behind which the query goes on. Raises :class:`Misconfigured` where a batch is not finished."""
        committed, planned = self.committed, self.planned
        if planned is not None:
            text = f"has batch {planned}, planned and not committed. Start the query, so that it finishes it, and stop it."
            raise _refused("CHECKPOINT", text)
        if committed is None:
            raise _refused("CHECKPOINT", "has no batch yet: the options of the sources say where they begin.")
        return self.entry(committed)

    def move(self, entry: Entry, to: SourceOffset) -> None:
        """Lets the source of ``to`` go on there, behind ``entry``, the one of :meth:`movable`.

        Raises :class:`Misconfigured` as that, or if the query runs.
        """
        if self.movable() != entry:
            raise _refused("CHECKPOINT", f"has gone on behind batch {entry.batch} meanwhile. Stop the query, and look again.")
        entries = [entry]
        place, before = (offset.value.get("logOffset", 0) for offset in (to, entry.source(to.name)))
        if place > (last := max(self._batches(f"sources/{to.name}"), default=place)):
            text = f'gives "logOffset" {place}; source {to.name} has {last} at most, and would never start.'
            raise _refused("--to-offset", text)
        if not to.system and place <= before and entry.batch - 1 in self._batches("offsets"):
            # Spark asks its file source for the range of the last batch at each start; it must not end before it begins.
            entries.insert(0, self.entry(entry.batch - 1))
        for old in entries:
            self._replace(old.with_source(to))
        if max(self._batches("offsets")) != entry.batch:
            for old in reversed(entries):  # a batch that is planned must keep its start
                self._replace(old)
            raise _refused("CHECKPOINT", f"has a batch behind {entry.batch} by now: the query runs somewhere. Stop it.")

    def _replace(self, entry: Entry) -> None:
        name = f"offsets/{entry.batch}"
        self.storage.delete(f"offsets/.{entry.batch}.crc")  # Hadoop's checksum of the old one; without it nothing is compared
        self.storage.sync((), ["offsets"])
        self.storage.replace(name, entry.text().encode(), durable=True)
        self.storage.sync((), ["offsets"])

    def keeps_state(self) -> bool:
        """True for a query that aggregates, joins or deduplicates over its batches."""
        return self.storage.item("state") is not None

    def _batches(self, folder: str) -> list[int]:
        names = (item.name.removesuffix(".compact") for item in self.storage.items(folder))
        return [int(name) for name in names if name.isdigit()]

