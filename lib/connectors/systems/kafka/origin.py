"""Where a new query over Kafka begins: offsets by the options that say so, asked of the cluster once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from ...core import Misconfigured, Problem
from ...core.options import Values
from .cluster import Cluster, Head
from .positions import Partition, named
from .starts import EARLIEST, LATEST, Edge


def wanted_names(values: Values, cluster: Cluster) -> list[str]:
    """The topics to read, whether they exist or not; by a pattern those that exist."""
    if values["subscribePattern"] is not None:
        pattern = re.compile(values["subscribePattern"])
        return [name for name in cluster.names() if pattern.fullmatch(name)]
    if values["assign"] is not None:
        return sorted({topic for topic, _ in values["assign"]})
    return sorted(set(values["subscribe"]))


class Origin:
    """The start of one query, given what there is."""

    def __init__(self, values: Values, cluster: Cluster, head: Head) -> None:
        self.values = values
        self.cluster = cluster
        self.head = head

    def offsets(self, start: Edge, end: Edge | None) -> dict[Partition, int]:
        """The first offset of every partition. Raises ``Misconfigured`` for topics or partitions that do not fit."""
        self._require_topics()
        if end is not None:
            self._require_all(end, end.offsets if end.times is None else end.times)
        if start.times is not None:
            return self._by_time(start)
        if start.offsets is not None:
            self._require_all(start, start.offsets)
            marks = {EARLIEST: self.head.first, LATEST: self.head.last}
            given = start.offsets
            return {one: marks[to][one] if (to := given[one]) in marks else to for one in self.head.last}
        if start.word == "committed":
            return self._of_group()
        return dict(self.head.first if start.word == "earliest" else self.head.last)

    def _of_group(self) -> dict[Partition, int]:
        found = self.cluster.committed(self.head.last)
        missing = [named(one) for one in self.head.last if one not in found]
        fallback = self.values["startingOffsets.fallback"]
        if missing and fallback == "none":
            group = self.values["kafka.group.id"]
            text = (
                f'committed, but group "{group}" has no offsets of {", ".join(missing)}; '
                "set startingOffsets.fallback to earliest or latest."
            )
            raise Misconfigured("connectors.kafka", [Problem("startingOffsets", text)])
        rest = self.head.first if fallback == "earliest" else self.head.last
        return {one: found.get(one, rest[one]) for one in self.head.last}

    def _by_time(self, edge: Edge) -> dict[Partition, int]:
        times = dict.fromkeys(self.head.last, edge.times) if isinstance(edge.times, int) else edge.times
        self._require_all(edge, times)
        found = self.cluster.after({one: times[one] for one in self.head.last})  # type: ignore[index]
        none = [named(one) for one, record in found.items() if record is None]
        if none and self.values["startingOffsetsByTimestampStrategy"] == "error":
            text = (
                f"there is no record of that time or later in {', '.join(none)}; "
                "set startingOffsetsByTimestampStrategy=latest to begin there with the next one."
            )
            raise Misconfigured("connectors.kafka", [Problem(edge.option, text)])
        return {one: record.offset if record else self.head.last[one] for one, record in found.items()}

    def _require_topics(self) -> None:
        if self.values["subscribePattern"] is not None:
            return
        option = "assign" if self.values["assign"] is not None else "subscribe"
        missing = [name for name in wanted_names(self.values, self.cluster) if name not in self.head.topics]
        if option == "assign" and not missing:
            missing = [named(one) for one in self.values["assign"] if one not in self.head.last]
        if missing:
            close = difflib.get_close_matches(missing[0], self.cluster.names(), n=1)
            hint = f'; did you mean "{close[0]}"?' if close else "."
            raise Misconfigured("connectors.kafka", [Problem(option, f"{', '.join(missing)} does not exist{hint}")])

    def _require_all(self, edge: Edge, given: Mapping[Partition, int] | int | None) -> None:
        if not isinstance(given, Mapping):
            return
        missing = [named(one) for one in sorted(self.head.last) if one not in given]
        unknown = [named(one) for one in sorted(given) if one not in self.head.last]
        if missing or unknown:
            said = f"names {', '.join(unknown)}, which is not read"
            what = f"says nothing of {', '.join(missing)}" if missing else said
            text = f"{what}. Give every partition; -2 is the earliest offset and -1 the latest."
            raise Misconfigured("connectors.kafka", [Problem(edge.option, text)])
