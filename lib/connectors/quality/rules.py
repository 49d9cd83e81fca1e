"""Checks as data: the rules of an output in a file or a parameter, for every notebook that needs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..ground.errors import Misconfigured, Problem
from ..ground.parameters import json_text
from .check import Check
from .contract import contract, refuse_repeated
from .define import between, expression, fresh, in_set, matches, not_null, row_count, unique
from .suite import Checks

_RULES: Final[Mapping[str, Callable[..., Check]]] = {
    function.__name__: function
    for function in (between, expression, fresh, in_set, matches, not_null, row_count, unique)
}


def rules(source: str) -> Checks:
    """The checks of a JSON text, or of the file that ``source`` names: JSON, or a data contract (``orders.yaml``, ODCS 3).

    The text is a list of objects such as ``{"not_null": "id"}``, ``{"between": ["cents", 0, 100000]}`` or
    ``{"row_count": {"min": 1}}``: the name of a function of :mod:`connectors.quality`, and one argument, a list of them, or an
    object of them by name. A contract gives types, required and unique columns, ranges, lengths, patterns and sets of values.
    ``unchecked`` of the checks lists its other statements; ``orders.yaml#orders`` names one of its schemas. Raises
    :class:`~connectors.ground.errors.Misconfigured` with every problem.
    """
    if source.partition("#")[0].endswith((".yaml", ".yml")):
        found = contract(source)
        return Checks(list(dict.fromkeys(found.checks)), unchecked=found.unchecked)
    listed = _json(source, "a list of rules")
    problems: list[Problem] = []
    if not isinstance(listed, list) or not listed:
        problems.append(Problem("checks", 'must be a list of at least one rule, such as [{"not_null": "id"}]'))
    checks = [] if problems else _checks(listed, "", problems)
    if problems:
        raise Misconfigured("quality.rules", problems)
    return Checks(checks)


def rules_by_table(source: str) -> dict[str, Checks]:
    """The checks of several tables: a JSON object of lists as :func:`rules` takes them, or the file that ``source`` names.

    ``{"orders": [{"not_null": "id"}], "*": [{"row_count": {"min": 1}}]}``: ``*`` stands for all tables that have no list.
    Raises :class:`~connectors.ground.errors.Misconfigured` with every problem.
    """
    tables, problems = _json(source, "rules by table"), list[Problem]()
    if not isinstance(tables, dict) or not all(isinstance(listed, list) for listed in tables.values()):
        text = 'must be an object with a list of rules for each table, such as {"orders": [{"not_null": "id"}]}'
        raise Misconfigured("quality.rules_by_table", [Problem("checks", text)])
    checks = {table: _checks(listed, f"{table}: ", problems) for table, listed in tables.items()}
    by_table: dict[str, Checks] = {}
    for table, of_table in checks.items():
        try:
            by_table[table] = Checks(of_table)
        except Misconfigured as wrong:
            problems += [Problem(problem.option, f"{table}: {problem.text}") for problem in wrong.problems]
    if problems:
        raise Misconfigured("quality.rules_by_table", problems)
    return by_table


def _json(source: str, what: str) -> Any:
    try:
        return json.loads(json_text(source), object_pairs_hook=_object)
    except OSError as unreadable:
        problem = f'the file "{source}" cannot be read: {unreadable.strerror}. Give {what} as JSON, or its file.'
    except ValueError as wrong:
        problem = f"is no JSON: {wrong}"
    raise Misconfigured("quality.rules", [Problem("checks", problem)])


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def _checks(listed: Sequence[Any], place: str, problems: list[Problem]) -> list[Check]:
    checks = []
    for number, rule in enumerate(listed, start=1):
        try:
            checks.append(_check(rule))
        except (TypeError, ValueError) as wrong:
            problems.append(Problem("checks", f"{place}rule {number}, {json.dumps(rule)}: {wrong}"))
    return checks


def _check(rule: Any) -> Check:
    if not isinstance(rule, dict) or len(rule) != 1:
        raise ValueError('must be an object with one name, such as {"not_null": "id"}')
    ((name, arguments),) = rule.items()
    if name not in _RULES:
        raise ValueError(f'"{name}" is no rule; there are {", ".join(_RULES)}')
    function = _RULES[name]
    if isinstance(arguments, dict):
        return function(**arguments)
    return function(*arguments) if isinstance(arguments, list) else function(arguments)
