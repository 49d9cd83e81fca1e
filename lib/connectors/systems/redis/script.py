"""Exactly-once: tasks stage commands in Redis, and one script runs those of a batch together with the ledger's entry.

The keys of a sink begin with ``connectors:`` and its id: the hash ``ledger`` has the newest entry of each query, the sorted
set ``attempts`` when each attempt of a task began, and the hash ``stage:`` of an attempt its commands, numbered in their order.
A batch write of its own has a ledger of its own, the hash ``once-…``, which expires if its end is not seen.

Redis cannot take back what a script has done. So the script looks first at what could end it on its way: a stage that is not
whole, and keys that hold another type. It takes its commands only when nothing of that is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any, Final

from ...core import Batch, Committable, Entry, Fatal, GlobalCommitter, Transient
from ...core.ledger import OWNER, LedgerContent, already_committed, check_claim, is_once, is_stream
from ...ground import machine
from ...ground.state import dumps, loads
from .connection import RedisClient

_CHUNK: Final = 500
LEAST_SECONDS: Final = 86_400
"""So long at least is what is staged safe, for a batch that is written longer than staged rows of others are kept."""
MOST_PARTS: Final = 7_900
"""Of a command, name and arguments: Lua takes about 8,000 values at a time."""
_SCRIPT: Final = """
local query, number, entry, chunk, lifetime = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local last = redis.call('HGET', KEYS[1], query)
if last and cjson.decode(last).batch >= number then return {'committed', last} end
local claim = tonumber(ARGV[6])
local owner = claim and redis.call('HGET', KEYS[1], 'owner')
if owner and cjson.decode(owner).batch >= claim then return {'claimed', owner} end

local types = {HSET = 'hash', LPUSH = 'list', RPUSH = 'list', ZADD = 'zset', XADD = 'stream'}

local function parts(text)
  local list, place = {}, 1
  while place <= #text do list[#list + 1], place = struct.unpack('>I4c0', text, place) end
  return list
end

local function each(visit)
  for stage = 1, #KEYS - 2 do
    local left, sequence = tonumber(ARGV[7 + 2 * stage]), 0
    local numbers = tonumber(ARGV[6 + 2 * stage])
    while sequence < numbers do
      local names = {}
      for n = sequence, math.min(sequence + chunk, numbers) - 1 do names[#names + 1] = n end
      for _, text in ipairs(redis.call('HMGET', KEYS[stage + 2], unpack(names))) do
        if text then
          left = left - 1
          local problem = visit(text)
          if problem then return problem end
        end
      end
      sequence = sequence + chunk
    end
    if left ~= 0 then return {'incomplete', KEYS[stage + 2], left} end
  end
end

local expiring = {}
local problem = each(function(text)
  local seconds, command, key = struct.unpack('>I4c0>I4c0>I4c0', text)
  if not expiring[key] then
    expiring[key] = seconds
    local kind = redis.call('TYPE', key).ok
    if types[command] and kind ~= 'none' and kind ~= types[command] then return {'type', key, kind} end
  end
end)
if problem then return problem end

each(function(text) redis.call(unpack(parts(text), 2)) end)
for key, seconds in pairs(expiring) do
  if seconds ~= '0' then redis.call('EXPIRE', key, seconds) end
end
redis.call('HSET', KEYS[1], query, entry)
if claim then redis.call('HSET', KEYS[1], 'owner', ARGV[7]) end
if lifetime > 0 then redis.call('EXPIRE', KEYS[1], lifetime) end
for stage = 3, #KEYS do
  redis.call('DEL', KEYS[stage])
  redis.call('ZREM', KEYS[2], string.match(KEYS[stage], '[^:]*$'))
end
return {'entered'}
"""


class SinkKeys:
    """The names of a sink's own keys."""

    def __init__(self, sink_id: str) -> None:
        self._prefix = f"connectors:{sink_id}:"
        self.ledger = f"{self._prefix}ledger"
        self.attempts = f"{self._prefix}attempts"

    def stage(self, attempt: str) -> str:
        return f"{self._prefix}stage:{attempt}"

    def ledger_of(self, query: str) -> str:
        """The ledger that has the entries of ``query``."""
        return f"{self._prefix}{query}" if is_once(query) else self.ledger


def contents(client: RedisClient) -> list[LedgerContent]:
    """The content of every sink's ledger in the database of ``client``."""
    pattern = SinkKeys("*").ledger
    ledger_keys, cursor = set[bytes](), b"0"
    while True:
        cursor, keys = client.command("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
        ledger_keys.update(keys)
        if int(cursor) == 0:
            break
    prefix, suffix = pattern.split("*")
    names = {key.decode().removeprefix(prefix).removesuffix(suffix): key for key in sorted(ledger_keys)}
    return [
        LedgerContent(sink_id, tuple(entry for entry in map(_entry, client.command("HVALS", key)) if entry.query != OWNER))
        for sink_id, key in names.items()
    ]


def staged(command: Sequence[Any], expire: int) -> bytes:
    """A command as the script reads it: the seconds until its key expires (0: never), then its parts."""
    name, *arguments = command
    parts = (b"%d" % expire, name.encode(), *arguments)
    return b"".join(pack(">I", len(part)) + part for part in parts)


class ScriptCommitter(GlobalCommitter):
    """Runs the staged commands of a batch and records it, in one step."""

    records_claims = True

    def __init__(self, sink_id: str, connect: Callable[[], RedisClient], retention: float) -> None:
        """Stages older than ``retention`` seconds are deleted, unless they are of the batch that is being written."""
        self._sink_id = sink_id
        self._keys = SinkKeys(sink_id)
        self._connect = connect
        self._retention = retention

    def last(self, query: str) -> Entry | None:
        text = self._call("HGET", self._keys.ledger_of(query), query)
        return None if text is None else _entry(text)

    def queries(self) -> frozenset[str]:
        return frozenset(query for name in self._call("HKEYS", self._keys.ledger) if is_stream(query := name.decode()))

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        stages = [committable for committable in committables if committable.rows]
        ledger = self._keys.ledger_of(entry.query)
        keys = [ledger, self._keys.attempts, *(self._keys.stage(part.data["attempt"]) for part in stages)]
        sizes = [number for part in stages for number in (part.data["numbers"], part.rows)]
        lifetime = max(LEAST_SECONDS, int(self._retention)) if is_once(entry.query) else 0
        claim = entry.ownership()
        owner = ["", ""] if claim is None else [claim.batch, dumps(claim.state())]
        arguments = [entry.query, entry.batch, dumps(entry.state()), _CHUNK, lifetime, *owner, *sizes]
        outcome, *facts = self._call("EVAL", _SCRIPT, len(keys), *keys, *arguments)
        if outcome == b"type":
            key, kind = (fact.decode(errors="replace") for fact in facts)
            text = f'the key "{key}" holds a {kind}; nothing of batch {entry.batch} is written'
            raise Fatal(text, way_out="delete or rename the key; without guarantee=exactly-once its rows are bad rows")
        if outcome == b"incomplete":
            text = f"{facts[1]} commands staged in {facts[0].decode()} are gone; nothing of batch {entry.batch} is written"
            raise Fatal(text, way_out="run the query again; a server that evicts keys needs maxmemory-policy noeviction")
        if outcome == b"claimed":
            check_claim(self._sink_id, entry, _entry(facts[0]))
        if outcome in (b"claimed", b"committed"):
            raise already_committed(entry)
        if is_once(entry.query):
            with contextlib.suppress(Transient):  # a second try would find neither the stage nor the entry
                self._call("UNLINK", ledger)

    def discard(self, committable: Committable) -> None:
        self._forget([committable.data["attempt"]])

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        of_batch = [name for name in self._attempts("+inf") if name.startswith(f"{batch.prefix()}-")]
        self._forget([name for name in of_batch if failed or name.split("-")[1] != batch.run_id()])

    def sweep(self, live: frozenset[str]) -> None:
        old = self._attempts(machine.time() - self._retention)
        self._forget([name for name in old if name.partition("-")[0] not in live])

    def _attempts(self, until: float | str) -> list[str]:
        return [name.decode() for name in self._call("ZRANGEBYSCORE", self._keys.attempts, "-inf", until)]

    def _forget(self, attempts: Sequence[str]) -> None:
        if attempts:
            self._call("UNLINK", *map(self._keys.stage, attempts))
            self._call("ZREM", self._keys.attempts, *attempts)

    def _call(self, *parts: Any) -> Any:
        client = self._connect()
        try:
            return client.command(*parts)
        finally:
            client.close()


def _entry(text: bytes) -> Entry:
    return Entry.of(loads(text, "an entry of the ledger in Redis"))
