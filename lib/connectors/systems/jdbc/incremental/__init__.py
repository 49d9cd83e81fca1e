"""``connectors.jdbc`` as a stream: new and changed rows of a table, a query, or all tables of a database.

Options beside those of a batch: ``incremental`` incrementing|timestamp|timestamp+incrementing|bulk, ``incrementingColumn``
(by default a primary key of one column with whole numbers), ``timestampColumns`` (of several the first that is not null
counts), ``timestampDelay`` (0s), ``singleWriter`` (false; true: one connection at a time writes, so ids become visible in
their order, and the stream does not look for open transactions), ``timeZone`` (UTC: of times without one), ``tables`` (names,
or an expression that matches a whole name of the default schema; columns are then ``table`` and ``row``, JSON, and with
``includeSchema`` also ``schema``, as Spark SQL text, and ``key``, the names of the primary key's columns),
``discoveryInterval`` (30s), ``onTypeChange`` fail|cast (fail), ``maxRowsPerTrigger`` (alias ``maxOffsetsPerTrigger``).
Without ``incremental``, tables of ``tables`` are read by their primary keys.
A stream reads everything from the beginning.

=========================  ============================  ==================================================================
mode                       what is read once             what it takes
=========================  ============================  ==================================================================
``incrementing``           every row, by its id          ids are given once; changes of a row are not seen
``timestamp``              every version, by its time    each change sets the time; a row that gets a time already read is
                                                         missed unless ``timestampDelay`` covers it
``timestamp+incrementing``  every version                 the same; rows of one time with a larger id are not missed
``bulk``                   all rows, in each batch       nothing; once per trigger, and once per start with availableNow
=========================  ============================  ==================================================================

**What exactly-once means in a table that changes.** The two offsets of a batch alone say which row versions belong to it
(:mod:`.positions`), so a replay reads the same versions. If a version changes before its batch is read, it no longer
exists; its successor belongs to a later batch. So each version that exists when its batch is read is in exactly one batch, the
last version of each row is always read, and no version is in two batches. A replay may find fewer versions than the first
try: with a sink that compares replays, set ``onReplayMismatch=skip`` for a table with changes. Deleted rows are not seen.

**PostgreSQL** shows which transactions are open, so the stream neither misses rows that are committed late nor waits for them
(:mod:`.writers`). If ids are missing while a transaction has locked the table, or the sequence of its ids, for writing, the
stream looks for them again until all such transactions are gone (:mod:`.writers`). Rows carry the number of the transaction
that wrote them: by time, the stream reads versions of ended transactions now and the others later, whatever their times
(:mod:`.probe`). Subtransactions, prepared transactions, a crash of the server, vacuum and a wrap-around of transaction numbers
do not matter. It refuses ids that a sequence hands out in blocks (CACHE; INCREMENT BY, for an application that counts by
itself), and assumes of others that their writers hold a lock on the table from before they take an id. It also assumes that
times come from clocks that agree with the server's up to ``timestampDelay``. An ALTER TABLE that rewrites the whole table makes
new versions of its newest rows. Views and queries do not tell which transaction wrote a row: by times only ``timestampDelay``
protects them.

**MySQL and MariaDB** also commit ids out of order. For a user with the privilege PROCESS they list open transactions too, so
the stream looks for missing ids in the same way; the ids must come from AUTO_INCREMENT, and those of a sequence are refused.
MySQL tells whether it is a replica to a user who may read ``performance_schema``. Neither tells which transaction wrote a row:
by times, the stream may miss a row whose transaction lasts longer than ``timestampDelay``.

**Replicas** do not show the transactions of their primary, so a stream refuses a standby of PostgreSQL, tables that a
subscription fills, foreign tables, a replica of MySQL or MariaDB and a node of their clusters. By ids it reads them with
``singleWriter``, and PostgreSQL's by times with a ``timestampDelay`` that is longer than any transaction and than the delay of
the replica.

**SQLite and DuckDB** have one writer at a time, so ids become visible in their order.

**Gaps.** The stream watches 500 gaps of a table at a time. The ids past them wait until all transactions that were writing
when the driver first saw these ids are gone. So a transaction that stays open blocks a stream with more gaps, and
``availableNow`` ends before them. With ``singleWriter`` it watches no gap.

**Names.** A stream of one table records the table by the name of its first start: it refuses another spelling of ``dbtable``.

**Times** past the database's clock wait. A limit of rows never cuts inside equal times, so one group may exceed it.
Times without a zone are a wall clock in ``timeZone``: the hour that comes twice in autumn is read after its second pass;
dates are read when their day is over, and times of whole seconds or minutes when these are over. In SQLite, times with an
offset have that of ``timeZone``, or UTC's. Rows without a key are left out and counted (``rows without a key`` among the
partitions of the metrics).

**Tables** come and go. The stream reads a new table from its beginning. A dropped table ends without an error, also if a task
finds out first; PostgreSQL recognizes a table that was made again under the same name. A table that was read and has lost its
key ends the query with an error, unless ``tables`` leaves it out; with its key it goes on where it was. New columns are in the
JSON of later rows, and are reported. Another type of a column stops the query. With ``onTypeChange=cast`` it goes on: one table
with the stream's types, many tables with their present types. :func:`fan_out` makes one Delta table of each.
"""
