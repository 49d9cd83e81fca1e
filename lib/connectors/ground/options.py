"""Options of a connector: declared once, parsed from the user's text, with every problem in one error.

A connector declares ``Options(start=Int(1), end=Int(None), numPartitions=Int(2, at_least=1))`` and reads
``Options.parse("connectors.sequence", typed)``: a :class:`Values` whose keys are case-insensitive. A default of
``None`` means "not given". So does an empty text if the default is ``None`` or an empty list or object. :data:`REQUIRED`
means that the user must give the option. Instead of a secret, the user may give a reference ``{{secrets/scope/key}}``: the
library looks the secret up where it is used, so that Spark's plans and pages show only the reference.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, quote_plus

from .errors import Misconfigured, Problem
from .quantities import duration, moment, size
from .relations import relation_problems
from .secrets import filled

REQUIRED: Final = object()
"""The default of an option that the user must give."""

_SECRET: Final = re.compile(
    r"password|passphrase|passwd|pwd$|secret|token|credential|(^|[._-])sas$|api[._-]?key$|(private|access|account)[._-]?key$"
    r"|connection[._-]?string$|jaas\.config$|\bkey\.pem$|\bkeystore\.key$|^(storage)?options$|^headers$|^auth$|^config$|^pipelines$|^sources$",
    re.IGNORECASE,
)
_USER_INFO: Final = re.compile(r"(\b[a-z][a-z0-9+.:-]*://)((?:(?!,[a-z][a-z0-9+.:-]*://)\S)+)@", re.IGNORECASE)
_SECRET_PLACE: Final = r"""(?i:(?:password|passphrase|passwd|pwd|secret|token|key)[\\"']*\s*[:=]\s*[\\"']*|://[^\s:/@]*:)"""
_WORD_START: Final = r"(?:(?<!\w)|(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt])|(?<=\\u[0-9A-Fa-f]{4}))"
"""Where a word starts, also after a character that a URL or JSON has escaped."""
_WORD, _ANYWHERE = 4, 8
"""The lengths from which a secret is replaced as a whole word, and from which also inside words."""
_SECRET_PART: Final = re.compile(r"(\b\w*(?:password|pwd|secret|token|key|sig)=|[?&]code=)([^&;\s]+)", re.IGNORECASE)
"""Includes a signature or code in a link, which gives access to anybody who has the link."""


def is_secret(option: str) -> bool:
    """True for options whose value must never be shown: ``password``, ``apiKey``, a private key, any name with token …"""
    return _SECRET.search(option) is not None


def redacted(option: str, value: object) -> str:
    """:func:`masked` in quotes, for a message."""
    return repr(masked(option, value))


def masked(option: str, value: object) -> str:
    """``value`` without secrets: hidden as a whole, or user info and passwords cut out of URLs and connection strings."""
    return "***" if is_secret(option) else _SECRET_PART.sub(r"\1***", _USER_INFO.sub(r"\1***@", str(value)))


def secrets_in(option: str, value: str) -> list[str]:
    """The parts of ``value`` that :func:`masked` hides, to hide them in messages of other libraries too."""
    if is_secret(option):
        return [value]
    passwords = [match[2].partition(":")[2] for match in _USER_INFO.finditer(value)]
    return [text for text in (*passwords, *(match[2] for match in _SECRET_PART.finditer(value))) if text]


def masker(secrets: Sequence[str]) -> Callable[[str], str]:
    """A function that replaces each of ``secrets`` in a text, also as Python, JSON and URLs write it, and line by line.

    A secret below eight characters, or of letters only, is replaced only as a whole word: "test" stays in "latest". Below
    four, only after the name of a secret and in the login of a URL, because gaps elsewhere would reveal it.
    """
    lines = [line.strip() for text in secrets for line in text.splitlines()]
    texts = [*secrets, *(line for line in lines if len(line) >= _ANYWHERE)]  # a shorter line, such as a brace, reveals nothing
    forms = sorted({form for text in texts for form in _written_forms(text) if form.strip()}, key=len, reverse=True)
    short = [re.escape(form) for form in forms if len(form) < _WORD]
    patterns = [_pattern(form) for form in forms if len(form) >= _WORD]
    patterns += [rf"(?P<place>{_SECRET_PLACE})(?:{'|'.join(short)})(?!\w)"] if short else []
    if not patterns:
        return str
    pattern = re.compile("|".join(patterns))
    return lambda text: pattern.sub(lambda match: f"{match.groupdict().get('place') or ''}*****", text)


def _pattern(form: str) -> str:
    if len(form) >= _ANYWHERE and not form.isalpha():
        return re.escape(form)
    start, end = _WORD_START if re.match(r"\w", form) else "", r"(?!\w)" if re.search(r"\w\Z", form) else ""
    return f"{start}{re.escape(form)}{end}"


def _written_forms(text: str) -> Iterator[str]:
    yield from (text, quote(text), quote(text, safe=""), quote_plus(text), repr(text)[1:-1], repr(text.encode())[2:-1])
    yield from (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])


@dataclass(frozen=True)
class Option:
    """One option: how its text becomes a value. ``parse`` raises ``ValueError`` with a phrase that continues "must be".

    ``meaning`` is its line in the reference; ``carrier`` the only way to write that uses it (``foreach_batch``, ``df.write``).

    The other fields are conditions on other options, as :mod:`connectors.ground.relations` reads them. If one of ``needed_by``
    holds, the option must be given. If it is given, each of ``only_with`` must hold and none of ``excludes``. A number must be
    ``above`` that of another option, or ``not_above`` it. Of the option and its ``alternatives`` exactly one must be given.
    """

    default: Any = None
    meaning: str = field(default="", kw_only=True)
    carrier: str = field(default="", kw_only=True)
    only_with: str | tuple[str, ...] = field(default=(), kw_only=True)
    needed_by: str | tuple[str, ...] = field(default=(), kw_only=True)
    excludes: str | tuple[str, ...] = field(default=(), kw_only=True)
    above: str = field(default="", kw_only=True)
    not_above: str = field(default="", kw_only=True)
    alternatives: tuple[str, ...] = field(default=(), kw_only=True)

    def parse(self, text: str) -> Any:
        return text

    def columns(self, value: Any) -> Sequence[str]:
        """The columns of written rows that ``value`` names."""
        return ()

    def problems(self, name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of the value under ``name`` together with other values, except those of its relations."""
        return iter(())

    def accepts(self) -> str:
        """The allowed values as a phrase for the reference."""
        return "text"


@dataclass(frozen=True)
class Text(Option):
    """Text as it is. If there is a ``pattern``, the whole text must match; ``expected`` describes it in the error."""

    pattern: str = ""
    expected: str = ""

    def parse(self, text: str) -> str:
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise ValueError(self.expected)
        return text


@dataclass(frozen=True)
class Int(Option):
    """A whole number between ``at_least`` and ``at_most``, both included."""

    at_least: int | None = None
    at_most: int | None = None

    def parse(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("a whole number") from None
        if self.at_least is not None and value < self.at_least:
            raise ValueError(f"{self.at_least} or more")
        if self.at_most is not None and value > self.at_most:
            raise ValueError(f"{self.at_most} or less")
        return value

    def accepts(self) -> str:
        if self.at_least is None and self.at_most is None:
            return "number"
        return f"{self.at_least} or more" if self.at_most is None else f"{self.at_least} to {self.at_most}"


class Time(Option):
    """A time in seconds since 1970, from milliseconds, or from ISO text such as ``2026-11-28T10:00:00`` (UTC by default)."""

    def parse(self, text: str) -> float:
        return moment(text)

    def accepts(self) -> str:
        return "time"


class Flag(Option):
    """``true`` or ``false``."""

    def parse(self, text: str) -> bool:
        if (word := text.strip().lower()) not in ("true", "false"):
            raise ValueError("true or false")
        return word == "true"

    def accepts(self) -> str:
        return "true, false"


@dataclass(frozen=True)
class Choice(Option):
    """One of ``among``, in upper or lower case; the value is spelled as declared."""

    among: tuple[str, ...] = ()

    def parse(self, text: str) -> str:
        for choice in self.among:
            if choice.lower() == text.strip().lower():
                return choice
        raise ValueError("one of " + ", ".join(self.among))

    def accepts(self) -> str:
        return ", ".join(self.among)


class Names(Option):
    """A list of names: comma-separated, or JSON when a name holds a comma. The value is a tuple."""

    def parse(self, text: str) -> tuple[str, ...]:
        if text.lstrip().startswith("["):
            names = _json(text, list)
            if not all(isinstance(name, str) for name in names):
                raise ValueError("a JSON list of names")
        else:
            names = [name.strip() for name in text.split(",")]
        return tuple(name for name in names if name)

    def accepts(self) -> str:
        return "names"


@dataclass(frozen=True)
class Json(Option):
    """JSON of one ``kind``: an object (``dict``) or a list. ``words`` has the options of its objects, by heading."""

    kind: type = dict
    words: Mapping[str, Options] = field(default_factory=dict, kw_only=True, compare=False)

    def parse(self, text: str) -> Any:
        return _json(text, self.kind)

    def accepts(self) -> str:
        return "JSON"


def _json(text: str, kind: type) -> Any:
    expected = "a JSON object" if kind is dict else "a JSON list"
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError(expected) from None
    if not isinstance(value, kind):
        raise ValueError(expected)
    return value


@dataclass(frozen=True)
class Duration(Option):
    """Seconds between ``at_least`` and ``at_most``, as :func:`duration` reads them; a bare number is in ``unit``."""

    unit: str = "s"
    at_least: str = "0s"
    at_most: str = ""

    def parse(self, text: str) -> float:
        value = duration(text, self.unit)
        if value < duration(self.at_least) or (self.at_most and value > duration(self.at_most)):
            raise ValueError(f"{self.at_least} to {self.at_most}" if self.at_most else f"{self.at_least} or longer")
        return value

    def accepts(self) -> str:
        return "duration"


@dataclass(frozen=True)
class Size(Option):
    """Bytes between ``at_least`` and ``at_most``, as :func:`size` reads them."""

    at_least: int = 0
    at_most: int | None = None

    def parse(self, text: str) -> int:
        value = size(text)
        if value < self.at_least:
            raise ValueError(f"{self.at_least} bytes or more")
        if self.at_most is not None and value > self.at_most:
            raise ValueError(f"{self.at_most} bytes or less")
        return value

    def accepts(self) -> str:
        return "size"


class Values(Mapping[str, Any]):
    """The parsed options of one connector; keys in any case. :meth:`is_set` tells typed values from defaults."""

    def __init__(self, values: Mapping[str, Any], names: frozenset[str], extra: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}
        self._names = names
        self.extra = dict(extra)
        """Options that pass through to the system unchanged, by lower-case key (``kafka.*``)."""

    def __getitem__(self, name: str) -> Any:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def is_set(self, name: str) -> bool:
        """True for an option that the user has set."""
        return name.lower() in self._names


Check = Callable[[Values], Iterator[Problem] | Sequence[Problem]]


def usage(*, placed: bool) -> str:
    """A phrase that says how to give the option ``{name}``: to ``foreach_batch`` (``placed``) or to a format."""
    return 'in the options of foreach_batch: {{"{name}": …}}' if placed else 'by .option("{name}", …)'


class Options:
    """The options that a connector knows.

    ``through`` has the prefixes of options that pass to the system unread, perhaps with their meanings. ``refused`` maps an
    option that users may know from Spark to the reason why it is not supported. ``alias`` maps another name of an option to
    its own.
    """

    def __init__(
        self,
        declared: Mapping[str, Option] | None = None,
        /,
        *,
        through: Sequence[str] | Mapping[str, str] = (),
        refused: Mapping[str, str] | None = None,
        alias: Mapping[str, str] | None = None,
        **more: Option,
    ) -> None:
        self.declared: dict[str, Option] = {**(declared or {}), **more}
        meanings = through if isinstance(through, Mapping) else dict.fromkeys(through, "")
        self.through = {prefix.lower(): meaning for prefix, meaning in meanings.items()}
        self.refused = {name.lower(): (name, why) for name, why in (refused or {}).items()}
        self.alias = {name.lower(): target for name, target in (alias or {}).items()}
        self.other_names = dict(alias or {})

    def __or__(self, other: Options) -> Options:
        """The options of both; ``other`` wins. A connector extends the common options so."""
        joined = Options({**self.declared, **other.declared}, through={**self.through, **other.through})
        joined.refused = {**self.refused, **other.refused}
        joined.alias = {**self.alias, **other.alias}
        joined.other_names = {**self.other_names, **other.other_names}
        return joined

    def key(self, name: str) -> str:
        """The option that ``name`` is, or is an alias of, in lower case."""
        return self.alias.get(name.lower(), name).lower()

    def knows(self, name: str) -> bool:
        """True if ``name`` is an option, an alias, or has a prefix of ``through``."""
        key = self.key(name)
        return key in {declared.lower() for declared in self.declared} or key.startswith(tuple(self.through))

    def parse(
        self,
        connector: str,
        typed: Mapping[str, Any],
        check: Check | None = None,
        kind: str = "connector",
        *,
        placed: bool = False,
    ) -> Values:
        """The values of the options ``typed``. Raises :class:`Misconfigured` with every problem found.

        Relations, and problems between options that ``check`` yields, are looked for only if each option alone is valid.
        ``placed`` is that of :func:`usage`.
        """
        by_key = {name.lower(): name for name in self.declared}
        values = {name: option.default for name, option in self.declared.items()}
        names: set[str] = set()
        extra: dict[str, str] = {}
        problems: list[Problem] = []
        for name, raw in typed.items():
            key = self.key(name)
            if key in by_key:
                problems += self._read(by_key[key], name, raw, values, names)
            elif key in self.refused:
                problems.append(Problem(self.refused[key][0], self.refused[key][1]))
            elif key.startswith(tuple(self.through)):
                problems += self._pass(key, name, raw, extra)
            else:
                problems.append(Problem(name, self._unknown(key, kind)))
        problems += self._missing(values, problems, usage(placed=placed))
        parsed = Values(values, frozenset(names), extra)
        if not problems:
            problems += [*relation_problems(self.declared, parsed), *(check(parsed) if check else ())]
        if problems:
            raise Misconfigured(connector, problems)
        return parsed

    def _read(self, name: str, typed_as: str, raw: Any, values: dict[str, Any], names: set[str]) -> list[Problem]:
        if raw is None:
            return []
        if name.lower() in names:
            return [Problem(typed_as, f'is given twice, also as "{name}" or an alias of it. Give it once.')]
        option, text, has_secret = self.declared[name], _as_text(raw), is_secret(name)
        try:
            if has_secret and not isinstance(option, Json):  # in JSON after parsing: a secret may hold any character
                text, has_secret = filled(text), False
            if not text and option.default in (None, (), [], {}):  # a job passes an empty parameter so
                return []
            value = option.parse(text)
            values[name] = filled(value) if has_secret else value
        except ValueError as wrong:
            return [Problem(name, f"must be {wrong}; got {redacted(name, raw)}")]
        names.add(name.lower())
        return []

    def _pass(self, key: str, name: str, raw: Any, extra: dict[str, str]) -> list[Problem]:
        try:
            extra[key] = filled(str(raw)) if is_secret(key) else str(raw)
        except ValueError as wrong:
            return [Problem(name, f"must be {wrong}; got {redacted(name, raw)}")]
        return []

    def _missing(self, values: Mapping[str, Any], known: Sequence[Problem], usage: str) -> list[Problem]:
        reported = {problem.option.lower() for problem in known}
        missing = [name for name, value in values.items() if value is REQUIRED and name.lower() not in reported]
        return [Problem(name, f"missing; give it {usage.format(name=name)}.") for name in missing]

    def _unknown(self, key: str, kind: str) -> str:
        """The error for an unknown option. Compares letters only: Spark passes keys in lower case, and dots get lost."""
        by_letters = {_letters(name): target for name, target in self.alias.items()}
        by_letters.update((_letters(name), name) for name in self.declared)
        letters = _letters(key)
        close = difflib.get_close_matches(letters, list(by_letters), n=1, cutoff=0.7)
        longer = [other for other in by_letters if len(letters) > 3 and letters in other]
        nearest = next(iter([*close, *longer]), None)
        hint = f'; did you mean "{by_letters[nearest]}"?' if nearest else "."
        return f"is no option of this {kind}{hint}"


def with_keywords(options: Mapping[str, Any] | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """``options``, and those given as Python keywords: ``file_format`` is ``fileFormat``."""
    return {**(options or {}), **{_camel(name): value for name, value in keywords.items()}}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _letters(name: str) -> str:
    return re.sub(r"[._-]", "", name).lower()


def _as_text(raw: Any) -> str:
    if isinstance(raw, bool):
        return str(raw).lower()
    return json.dumps(raw) if isinstance(raw, (list, tuple, dict)) else str(raw)
