"""The output of ``python -m connectors status`` and ``ledger show``: a block of lines for each query, or each sink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from connectors.core.ledger import Entry, LedgerContent, txn_app_id
from connectors.metrics.history import RUNNING
from connectors.metrics.queries import UNKNOWN, QueryStanding, SinkStanding, ago
from connectors.metrics.words import amount, count, moment

_LONGEST_CAUSE = 300


def query_lines(query: QueryStanding) -> Iterator[str]:
    """Name and state, how far behind it is, and each sink with its id, as ledgers have it, and its last commit."""
    facts = [_state(query)]
    if query.lag is not None:
        facts.append(f"lag {amount(query.lag, query.unit)}" if query.lag else "no lag")
    if query.dead_letters:
        facts.append(count(query.dead_letters, "dead letter"))
    if query.state == RUNNING and query.process:
        facts.append(f"process {query.process}")
    yield f"{query.name}  {' · '.join(facts)}"
    if query.waiting_for:
        yield f"    waits for: {_short(query.waiting_for)}"
    if query.error:
        yield f"    {_short(query.error)}"
    for sink in query.sinks:
        yield f"    {_sink(sink)}"


def _state(query: QueryStanding) -> str:
    if query.state == RUNNING:
        return RUNNING
    return f"last seen {ago(query.at)}" if query.state == UNKNOWN else f"{query.state} {ago(query.at)}"


def _sink(sink: SinkStanding) -> str:
    facts = [] if sink.rows is None else [count(sink.rows, "row")]
    facts += [f"last commit {ago(sink.last_commit)}"] if sink.last_commit else []
    system = "" if sink.sink_id.startswith(f"{sink.system}-") else sink.system
    return "  ".join(part for part in (system, sink.sink_id, sink.target, ", ".join(facts)) if part)


def ledger_facts(content: LedgerContent, newest: int, names: Mapping[str, str]) -> dict[str, Any]:
    """The sink id, its queries, and the ``newest`` batches of each. ``names`` are those of queries, by their ids."""
    by_query: dict[str, list[Entry]] = defaultdict(list)
    for entry in content.entries:
        by_query[entry.query].append(entry)
    queries = [
        {
            "query": query,
            "name": names.get(query, query),
            "txnAppId": txn_app_id(query),
            "batches": [
                {"batch": entry.batch, "rows": entry.rows, "at": entry.at, "pending": (query, entry.batch) in content.pending}
                for entry in sorted(entries, key=lambda entry: -entry.batch)[:newest]
            ],
        }
        for query, entries in by_query.items()
    ]
    return {"sink_id": content.sink_id, "queries": queries}


def ledger_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """What :func:`ledger_facts` gives, as lines."""
    yield facts["sink_id"]
    for query in facts["queries"]:
        name, app = query["name"], query["txnAppId"]
        shown = f"{name} ({query['query']})" if name != query["query"] else name
        yield f"    query {shown}" if app is None else f"    txnAppId {app}"
        for batch in query["batches"]:
            number = f"batch {batch['batch']}" if app is None else f"txnVersion {batch['batch']}"
            rows = [] if batch["rows"] is None else [count(batch["rows"], "row")]
            shown = ", ".join([number, *rows, *([moment(batch["at"])] if batch["at"] else [])])
            yield f"        {shown}{': decided, not all of it published yet' if batch['pending'] else ''}"


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_CAUSE]
