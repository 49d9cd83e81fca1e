# ruff: noqa: E501
"""Protections of the protocols, each taken out once: the simulator has to miss it.

A mutation replaces one text of a module by another. ``QUICK`` are found within a few seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Mutation:
    """``old`` in ``module`` becomes ``new``; the histories are those of ``world``."""

    module: str
    old: str
    new: str
    world: str


MUTATIONS: Final = {
    "floor-after-put": Mutation(
        "connectors.core.epochs",
        "        if is_first:\n            self.check_retained(epoch)\n",
        "",
        "queue-database",
    ),
    "floor-before-receive": Mutation(
        "connectors.core.epoch_reader",
        "        self.log.check_retained(split.epoch)\n        receiver = self._opened()",
        "        receiver = self._opened()",
        "queue-database",
    ),
    "floor-on-record": Mutation(
        "connectors.core.epoch_reader",
        "            self.log.check_retained(split.epoch)  # a late attempt may have put it where the epoch was deleted\n",
        "            pass\n",
        "queue-database",
    ),
    "no-floor": Mutation(
        "connectors.core.epochs",
        '        return max(map(int, self.storage.names("floor")), default=0)',
        "        return 0",
        "queue-database",
    ),
    "window-zero": Mutation(
        "connectors.core.epochs",
        "versioned(end=machine.time() + window,",
        "versioned(end=machine.time(),",
        "queue-database",
    ),
    "no-known-ids": Mutation(
        "connectors.core.epochs",
        "        known, lists = _lists().get(log_id, {}), dict[str, pa.ChunkedArray]()\n",
        "        return pa.chunked_array([], type=pa.large_string())\n",
        "queue-database",
    ),
    "plain-window": Mutation(
        "connectors.core.epoch_source",
        "        return max(window, self.receiver.retention_seconds)",
        "        return window",
        "queue-database",
    ),
    "ids-not-kept": Mutation(
        "connectors.core.epochs",
        '            self.storage.put_if_absent(f"ids/{epoch:020d}-{end:.0f}.arrow", content)',
        "            pass",
        "queue-database",
    ),
    "no-floor-written": Mutation(
        "connectors.core.epochs",
        '            self.storage.put_if_absent(f"floor/{old[-1]:020d}", b"")\n',
        "            pass\n",
        "queue-database",
    ),
    "put-replaces": Mutation(
        "connectors.core.epochs",
        "        is_first = self.storage.put_if_absent(_record(epoch, reader), content)",
        "        self.storage.replace(_record(epoch, reader), content); is_first = True",
        "queue-database",
    ),
    "loser-uses-own-rows": Mutation(
        "connectors.core.epoch_reader",
        "        if is_first:\n            epoch.release_late",
        "        if True:\n            epoch.release_late",
        "queue-database",
    ),
    "no-neighbours": Mutation(
        "connectors.core.epoch_reader",
        "        for reader in range(split.reader):\n            while",
        "        for reader in range(0):\n            while",
        "queue-database",
    ),
    "own-duplicates": Mutation(
        "connectors.core.epoch_reader",
        "        return len(self._ids) > count",
        "        return True",
        "queue-database",
    ),
    "other-readers-in-replay": Mutation(
        "connectors.core.epoch_source",
        '            return {**after, "readers": recorded[0].readers}',
        "            pass",
        "queue-database",
    ),
    "readers-of-now": Mutation(
        "connectors.core.epoch_source",
        '    return int(end.get("readers", parallelism))',
        "    return parallelism",
        "queue-database",
    ),
    "no-orphans": Mutation(
        "connectors.core.epoch_source",
        "            if epoch != self._newest_plan:  # a driver that died has planned it",
        "            if False:",
        "queue-database",
    ),
    "no-orphans-of-tasks": Mutation(
        "connectors.core.epoch_reader",
        "        if is_repeated and self._lease:",
        "        if False:",
        "queue-database",
    ),
    "skip-writes": Mutation(
        "connectors.core.ledger",
        "    if batch == last.batch:\n        return Verdict.SKIP",
        "    if batch == last.batch:\n        return Verdict.WRITE",
        "queue-database",
    ),
    "record-always-true": Mutation(
        "connectors.core.commit",
        "        return recorded or (last is not None and dumps(last.committables) == dumps(entry.committables))",
        "        return True",
        "queue-files",
    ),
    "publish-old": Mutation(
        "connectors.core.commit",
        "        if last is not None and last.batch > entry.batch:\n            self._mark_published(entry)\n        else:",
        "        if False:\n            pass\n        else:",
        "queue-files",
    ),
    "no-recover": Mutation(
        "connectors.core.commit",
        "        if self._swept is None or machine.monotonic() - self._swept > SWEEP_SECONDS:",
        "        if False:",
        "queue-files",
    ),
    "abort-discards-decided": Mutation(
        "connectors.core.commit",
        "        if last is None or last.batch != batch.number:\n            self.discard",
        "        if True:\n            self.discard",
        "queue-files",
    ),
    "drop-recorded": Mutation(
        "connectors.core.commit",
        "        if isinstance(self.committer, Committer) and self._last_number(batch.query) >= batch.number:\n            return\n",
        "",
        "queue-files",
    ),
    "publish-before-record": Mutation(
        "connectors.core.commit",
        "        elif self.contact.call(lambda: self._record(batch, entry)):\n            self._publish(entry, batch)",
        "        elif (self._publish(entry, batch), self.contact.call(lambda: self._record(batch, entry)))[1]:\n            pass",
        "queue-files",
    ),
    "mark-before-publish": Mutation(
        "connectors.core.commit",
        "            self.contact.call(lambda: committer.publish(batch, staged))\n            self._mark_published(entry)",
        "            self._mark_published(entry)\n            self.contact.call(lambda: committer.publish(batch, staged))",
        "queue-files",
    ),
    "content-not-synced": Mutation(
        "connectors.storage.local",
        "        if durable:\n            disk.sync(path)",
        "        pass",
        "queue-files",
    ),
    "folder-not-synced": Mutation(
        "connectors.storage.local",
        "        disk.sync(target.parent)  # also where",
        "        pass  # also where",
        "queue-files",
    ),
    "make-not-synced": Mutation(
        "connectors.storage.local",
        "                disk.sync(path.parent)\n            except",
        "                pass\n            except",
        "queue-files",
    ),
    "claim-replaces": Mutation(
        "connectors.storage.local",
        "            self._claim(temporary, target)\n",
        "            disk.rename(temporary, target)\n",
        "queue-database",
    ),
    "cursor-own-rows": Mutation(
        "connectors.core.cursor_source",
        "            if self.log.put(split.epoch, split.reader, record_content(table, epoch.header())):\n                return epoch.rows()",
        "            self.log.put(split.epoch, split.reader, record_content(table, epoch.header()))\n            return epoch.rows()",
        "shards-database",
    ),
    "cursor-plan-anew": Mutation(
        "connectors.core.cursor_source",
        "        if plan is not None:\n            return plan\n",
        "",
        "shards-database",
    ),
    "cursor-own-plan": Mutation(
        "connectors.core.cursor_source",
        "        recorded = self.log.plan(epoch)\n        assert recorded",
        "        recorded = plan\n        assert recorded",
        "shards-database",
    ),
    "cursor-record-ignored": Mutation(
        "connectors.core.cursor_source",
        "        record = self._record(split)\n        self.log.check(split.log)",
        "        record = None\n        self.log.check(split.log)",
        "shards-database",
    ),
    "finished-forgotten": Mutation(
        "connectors.core.cursor_source",
        "        finished.update(header.finished)\n",
        "",
        "shards-database",
    ),
    "end-is-not-kept": Mutation(
        "connectors.core.cursors",
        "        page = self._cursor.read(partition, start, None, rows)\n        if count",
        "        page = self._cursor.read(partition, start, None, rows)\n        self._positions[partition] = page.position\n        if count",
        "shards-database",
    ),
    "origin-not-kept": Mutation(
        "connectors.core.planning",
        "        origin = dict(start) if at is None else None",
        "        origin = None",
        "queue-database",
    ),
}
