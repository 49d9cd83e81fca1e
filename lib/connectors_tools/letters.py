"""``python -m connectors letters``: the dead letters of a folder, and how they are sent again.

A send goes in parts. A part is planned in ``.letters/<number>`` of the folder, written by ``df.write`` with this number as
``txnVersion``, and only then taken out of the letter files. Whatever dies, the next call carries the part through: a sink
that is exactly-once has each letter once. Each send is a ``txnAppId`` of its own: a folder that is restored from a copy has
numbers that the sink has seen.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from connectors.core.ledger import txn_app_id
from connectors.core.letter_files import DEAD_LETTERS, Letter, letter_key, letters_left, remove_letters
from connectors.ground.errors import Fatal, Misconfigured, Problem, StateError
from connectors.ground.state import digest
from connectors.storage.location import checked_storage, options_for

if TYPE_CHECKING:
    import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from connectors.core.sink import Sink

_COMMAND: Final = "connectors letters"
_STATE: Final = ".letters"
"""The folder of plans, beside the letter files, where no reader of Parquet looks."""
_PART_ROWS: Final = 10_000
_PART_BYTES: Final = 64 << 20
"""A part of a send has so many letters, or bytes of records, at most: what the driver has in memory."""
MAX_SENDS: Final = 3
_APP: Final = re.compile(r"letters-(\d+)-")
"""The beginning of the ``txnAppId`` of a send, which a letter of the sink names: how often its record was sent before."""
_VARIABLE: Final = re.compile(r"\b(?=\w*\d)\w+\b")
"""A word with a digit: what differs between errors of one kind."""
_LONGEST_KIND: Final = 160
NAME: Final = r'(?<=[{,])\s*"[^"\\]*"\s*:'
"""The name of a field in JSON. What stands elsewhere before a colon is a value, of a damaged record too."""
_NAME: Final = re.compile(NAME)
_ESCAPES: Final = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')
"""Characters as JSON may write them."""
_SHORT: Final = 3
"""A word of so many characters is in most texts: it is one of a record's values if the whole word is."""


@dataclass(frozen=True)
class Filter:
    """Chooses letters: those whose error has ``error`` in it, of ``source``, written from ``since`` on and before ``until``."""

    error: str = ""
    source: str = ""
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None

    def __call__(self, letter: Letter) -> bool:
        is_in_time = (self.since is None or letter["at"] >= self.since) and (self.until is None or letter["at"] < self.until)
        about = f"{letter['error_class']}: {letter['error']}"
        return is_in_time and self.error in about and self.source in ("", letter["source"])


Choice = Callable[[Letter], bool]
"""Chooses letters: a :class:`Filter`, or a function."""


@dataclass
class Kind:
    """Letters of one source whose errors differ in numbers and names alone: how many, and when the first and last came.

    They were sent again ``sends`` times, and refused each time.
    """

    source: str
    error_class: str
    error: str
    sends: int
    count: int
    first: datetime.datetime
    last: datetime.datetime


@dataclass(frozen=True)
class Target:
    """Where letters go: the ``sink`` with its options, and the rows that it gets.

    ``value`` is an expression over the columns of letters that takes the place of ``record``. With ``schema``, the record is
    JSON with these columns. ``select`` are expressions over all of them, by default those columns, else ``key``, ``value``,
    ``headers`` and ``timestamp`` as a source of messages has them. Raises :class:`Misconfigured` for an unknown sink.
    """

    sink: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    value: str = ""
    schema: str = ""
    select: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._class()

    def rows(self, letters: DataFrame) -> DataFrame:
        """The rows that the sink gets. Raises what Spark does for a record that is not of the schema."""
        from pyspark.sql import functions as f

        def unless(wrong: Column, text: str, value: Column) -> Column:
            return f.when(wrong, f.raise_error(f.concat(f.lit(f"{text}: "), "position"))).otherwise(value)

        if self.value:
            value = f.expr(self.value).cast("binary")
            is_lost = value.isNull() & f.col("record").isNotNull()
            letters = letters.withColumn("record", unless(is_lost, "--value makes NULL of a record", value))
        default = ["key", "record AS value", "headers", "timestamp"]
        if self.schema:
            text = f.col("record").cast("string")
            row = f.from_json(text, self.schema, {"mode": "FAILFAST"})
            length = f.json_array_length(f.concat(f.lit("["), text, f.lit("]")))  # from_json leaves out what comes behind
            names = letters.select(row.alias("_row")).schema["_row"].dataType.fieldNames()  # type: ignore[attr-defined]
            has_none = ~f.arrays_overlap(f.json_object_keys(text), f.array(*map(f.lit, names)))
            row = unless(has_none, "a record has none of the columns of --schema", row)
            row = unless(~length.eqNullSafe(1), "a record is not one JSON object, as --schema says", row)
            letters = letters.select("*", row.alias("_row")).select("*", "_row.*")
            default = ["_row.*"]
        return letters.selectExpr(*(self.select or default))

    def write(self, rows: DataFrame, app: str, version: int, folder: str, storage_options: Mapping[str, Any]) -> None:
        """Writes the rows as the batch ``version`` of ``app``. What the sink refuses is a letter in ``folder``."""
        options = {"txnAppId": app, "txnVersion": str(version), **self._options(folder, storage_options)}
        name = self._class().name
        rows.write.format(name if name == "delta" else f"connectors.{name}").options(**options).mode("append").save()

    def check(self, columns: pa.Schema, folder: str, storage_options: Mapping[str, Any]) -> None:
        """Raises :class:`Misconfigured` for options and columns that the sink does not take."""
        if (kind := self._class()).name != "delta":  # which is Spark's own here, with options of its own
            kind.of(self._options(folder, storage_options)).refuse_frame(columns, placed=False)

    def _class(self) -> type[Sink]:
        from connectors.systems import sink_class

        return sink_class(self.sink)

    def _options(self, folder: str, storage_options: Mapping[str, Any]) -> dict[str, str]:
        options: dict[str, str] = {}
        if self._class().known_options().knows("errors") and "errors" not in self.options:
            options |= {"errors": "deadLetter", "deadLetterPath": folder}
            if storage_options:
                options["storageOptions"] = json.dumps({folder: dict(options_for(folder, storage_options))})
        return {**options, **self.options}

    def fingerprint(self) -> str:
        """A digest of what becomes of a letter; options may be mended while a send is unfinished."""
        return digest(self.sink, self.value, self.schema, list(self.select))


def sends_of(letter: Letter) -> int:
    """How often a letter was sent again: the sink that has refused it tells which send its batch was."""
    try:
        app = _APP.match(txn_app_id(json.loads(letter["position"])["query"]) or "")
    except (AttributeError, LookupError, TypeError, ValueError):  # the letter of a source
        return 0
    return int(app[1]) if app else 0


def error_without_values(letter: Letter) -> str:
    """The error of a letter, with … for each word that is in a value of its record or key."""
    texts = (text for name in ("key", "record") for text in decoded_texts(letter[name] or b""))
    text = " ".join(_NAME.sub(" ", text) for text in texts)
    words = set(re.findall(r"\w+", text))

    def is_value(word: str) -> bool:
        return word in words or (len(word) > _SHORT and word in text)

    return re.sub(r"\w+", lambda match: "…" if is_value(match[0]) else match[0], str(letter["error"]))


def decoded_texts(content: bytes) -> Iterator[str]:
    """The texts that a decoder may have read in bytes whose format and encoding nobody knows here."""
    text = content.decode(errors="replace")
    yield text
    if "\\" in text:
        yield _ESCAPES.sub(lambda match: str(json.loads(f'"{match[0]}"')), text)
    if "\ufffd" in text or "\0" in text:  # it is not UTF-8
        yield from (content.decode(encoding, errors="replace") for encoding in ("latin-1", "utf-16-le", "utf-16-be"))


class Letters:
    """A folder of dead letters. Raises :class:`Misconfigured` for a location that no storage knows."""

    def __init__(self, location: str, storage_options: Mapping[str, Any] | None = None) -> None:
        self.location = location
        self.storage_options = storage_options or {}
        self.storage = checked_storage(_COMMAND, "PATH", location, self.storage_options)

    def letters(self, chosen: Choice, names: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """The letters that ``chosen`` takes, each with the name of its file, of all files or those of ``names``, in order.

        Raises :class:`StateError` for a file that has something else.
        """
        way_out = "give the folder that is the deadLetterPath of a source or sink, which has nothing else"
        for name in self._files() if names is None else names:
            try:
                for letter in letters_left(self.storage, name):
                    if not letter.keys() >= set(DEAD_LETTERS.names):
                        raise StateError(f"{name} in {self.location} has no dead letters", way_out=way_out)
                    if chosen(letter):
                        yield name, letter
            except FileNotFoundError:  # it was deleted since the folder was listed
                continue
            except pa.ArrowInvalid as wrong:
                raise StateError(f"{name} in {self.location} is no file of Parquet: {wrong}", way_out=way_out) from None

    def kinds(self, chosen: Choice) -> list[Kind]:
        """The kinds of the letters, the most frequent first."""
        kinds: dict[tuple[str, str, str, int], Kind] = {}
        for _, letter in self.letters(chosen):
            error = _VARIABLE.sub("…", " ".join(error_without_values(letter).split()))[:_LONGEST_KIND]
            about = (str(letter["source"]), str(letter["error_class"]), error, sends_of(letter))
            kind = kinds.setdefault(about, Kind(*about, 0, letter["at"], letter["at"]))
            kind.count += 1
            kind.first, kind.last = min(kind.first, letter["at"]), max(kind.last, letter["at"])
        return sorted(kinds.values(), key=lambda kind: (-kind.count, kind.first))

    def drop(self, chosen: Choice) -> int:
        """Removes letters for good and returns how many. Raises :class:`Misconfigured` while a send is unfinished."""
        number, plan = self._last_plan()
        if plan:
            way_out = "Call send again first; or, to forget it, send --anew with an --error that no letter has."
            raise _refused("PATH", f"has a send that was interrupted, its part {number}. {way_out}")
        count = 0
        for name in self._files():
            keys = {letter_key(letter) for _, letter in self.letters(chosen, [name])}
            with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
                count += remove_letters(self.storage, name, keys)
        return count

    def send(
        self, spark: SparkSession, chosen: Filter, to: Target, *, anew: bool = False, max_sends: int = MAX_SENDS
    ) -> int:
        """Sends letters, takes each out of its file when it is written, and returns how many it took out.

        An earlier send that was interrupted is carried through first; with ``anew`` it is forgotten, and what it has written
        may be written again. A letter that the sink refuses is a letter once, with the new error; one that was refused
        ``max_sends`` times stays. Raises :class:`Misconfigured` where the earlier send went elsewhere.
        """
        names, send = self._files(), uuid.uuid4().hex  # the letters that the sink refuses come in other files
        number, count = self._finish(spark, to, anew=anew)
        while part := self._part(chosen, names, max_sends):
            app = f"letters-{sends_of(part[0][1]) + 1}-{send}"
            rows = to.rows(self._frame(spark, part))
            table = rows.toArrow()
            if table.num_rows != len(part):
                raise _refused("--select", f"makes {table.num_rows} rows of {len(part)} letters, and must make one of each.")
            to.check(table.schema, self.location, self.storage_options)
            number += 1
            keys: dict[str, list[str]] = defaultdict(list)
            for name, letter in part:
                keys[name].append(letter_key(letter))
            plan = {"target": to.fingerprint(), "sink": to.sink, "app": app, "letters": keys}
            if not self.storage.put_if_absent(self._plan(number), json.dumps(plan).encode()):
                raise Fatal(f"another process sends letters of {self.location}", way_out="call this again when it has ended")
            self._write(rows, number, plan, to)
            count += len(part)
        return count

    def _finish(self, spark: SparkSession, to: Target, *, anew: bool) -> tuple[int, int]:
        """Carries through the part that a send has left behind, if there is one.

        Returns the number of the last part, and how many letters it had if it was left behind.
        """
        number, plan = self._last_plan()
        if not plan:
            return number, 0
        if plan.get("written"):
            self._remove(number, plan)
        elif anew:
            self.storage.replace(self._plan(number), b"{}", durable=True)
            return number, 0
        elif plan["target"] != to.fingerprint():
            text = f"sends them otherwise than the send to {plan['sink']} that was interrupted. Call that again"
            raise _refused("--to", f"{text}; or give --anew, and what it has written may be there twice.")
        else:
            keys = {name: set(of_file) for name, of_file in plan["letters"].items()}
            part = [(name, letter) for name, letter in self.letters(Filter(), keys) if letter_key(letter) in keys[name]]
            self._write(to.rows(self._frame(spark, part)), number, plan, to)
        return number, sum(map(len, plan["letters"].values()))

    def rows(self, spark: SparkSession, chosen: Filter, to: Target, max_sends: int = MAX_SENDS) -> DataFrame:
        """The rows that the first part of a send would have."""
        return to.rows(self._frame(spark, self._part(chosen, self._files(), max_sends)))

    def _files(self) -> list[str]:
        return sorted(name for name in self.storage.names() if name.endswith(".parquet"))

    def _part(self, chosen: Filter, names: Iterable[str], max_sends: int) -> list[tuple[str, Letter]]:
        """The letters of one part, each with the name of its file; they were all sent equally often."""
        part: list[tuple[str, Letter]] = []
        size = 0
        for name, letter in self.letters(chosen, names):
            sends = sends_of(letter)
            if sends >= max_sends or (part and sends != sends_of(part[0][1])):
                continue
            part.append((name, letter))
            size += len(letter["record"] or b"")
            if len(part) >= _PART_ROWS or size >= _PART_BYTES:
                break
        return part

    def _write(self, rows: DataFrame, number: int, plan: Mapping[str, Any], to: Target) -> None:
        """Writes the rows of a part and removes its letters."""
        to.write(rows, plan["app"], number, self.location, self.storage_options)
        plan = {**plan, "written": True}
        self.storage.replace(self._plan(number), json.dumps(plan).encode(), durable=True)
        self._remove(number, plan)

    def _remove(self, number: int, plan: Mapping[str, Any]) -> None:
        """Takes the letters of a part that is written out of their files, and notes that nothing is left to do."""
        for name, keys in plan["letters"].items():
            with contextlib.suppress(FileNotFoundError):  # somebody has deleted it
                remove_letters(self.storage, name, set(keys))
        self.storage.replace(self._plan(number), b"{}", durable=True)

    @staticmethod
    def _frame(spark: SparkSession, part: Sequence[tuple[str, Letter]]) -> DataFrame:
        return spark.createDataFrame(pa.Table.from_pylist([letter for _, letter in part], DEAD_LETTERS))

    def _last_plan(self) -> tuple[int, dict[str, Any]]:
        """The number of the last part, 0 if there was none, and its plan, empty when it is done."""
        number = max((int(name) for name in self.storage.names(_STATE) if name.isdigit()), default=0)
        return number, json.loads(self.storage.read(self._plan(number))) if number else {}

    @staticmethod
    def _plan(number: int) -> str:
        return f"{_STATE}/{number}"


def _refused(option: str, text: str) -> Misconfigured:
    return Misconfigured(_COMMAND, [Problem(option, text)])
