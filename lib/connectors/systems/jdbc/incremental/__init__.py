"""``connectors.jdbc`` as a stream: new and changed rows of a table, a query, or all tables of a database.

Options beside those of a batch: ``incremental`` incrementing|timestamp|timestamp+incrementing|bulk, ``incrementingColumn``
(by default a primary key of one column with whole numbers), ``timestampColumns`` (of several the first that is not null
counts), ``timestampDelay`` (0s), ``singleWriter`` (false; true: one connection at a time writes, so ids become visible in
their order, and nobody looks for open transactions), ``timeZone`` (UTC: of times without one), ``tables`` (names, or an
expression that matches a whole name of the default schema; columns are then ``table`` and ``row``, JSON, and with
``includeSchema`` also ``schema``), ``discoveryInterval`` (30s), ``onTypeChange`` fail|cast (fail), ``maxRowsPerTrigger``
(alias ``maxOffsetsPerTrigger``). Tables of ``tables`` are read by their primary keys where ``incremental`` is not given.
Everything is read from its beginning.

=========================  ============================  ==================================================================
mode                       what is read once             what it takes
=========================  ============================  ==================================================================
``incrementing``           every row, by its id          ids are given once; changes of a row are not seen
``timestamp``              every version, by its time    each change sets the time; a row that gets a time already read is
                                                         missed unless ``timestampDelay`` covers it
``timestamp+incrementing``  every version                 the same; rows of one time with a larger id are not missed
``bulk``                   all rows, in each batch       nothing; once per trigger, and once per start with availableNow
=========================  ============================  ==================================================================

**What exactly-once means in a table that changes.** The two offsets of a batch say, by themselves, which row versions
belong to it (:mod:`.positions`), so a replay reads the same ones. A version that was changed before its batch was
read is not there any more: its successor is, and that one belongs to a later batch. So each version that is there when its
batch is read is in exactly one batch, the last version of each row is always read, and a version is never in two batches. A
replay may find fewer versions than the first try; a sink that compares replays takes ``onReplayMismatch=skip`` for a table
with changes. Deleted rows are not seen.

**PostgreSQL** shows which transactions are open, so rows that are committed late are neither missed nor waited for
(:mod:`.writers`). Ids that are missing while somebody has the table, or the sequence of its ids, locked for writing
are looked for again until all who had are gone (:mod:`.writers`). Rows by time carry the number of the
transaction that wrote them; versions of transactions that are over are read now and the others later, whatever their times
(:mod:`.probe`). Subtransactions, prepared transactions, a crash of the server, vacuum and a wrap-around of transaction numbers
do not matter. Assumed is that ids come from a sequence without a cache or from writers who hold a lock on the table, and that
times come from clocks that agree with the server's up to ``timestampDelay``. An ALTER TABLE that writes the whole table anew
makes new versions of its newest rows. Views and queries do not tell who wrote a row: by times they have what
``timestampDelay`` covers.

**MariaDB** commits ids out of their order as well. Its open transactions are listed too, for a user with the privilege
PROCESS, so ids that are missing are looked for again in the same way; the ids must come from AUTO_INCREMENT. It does not tell
which of them wrote a row: by times, a row whose transaction lasts longer than ``timestampDelay`` may be missed.

**SQLite and DuckDB** have one writer at a time, so ids become visible in their order.

**Gaps.** 500 gaps of a table are watched at a time. The ids past them wait until all who wrote when the driver first saw them
are gone, so a transaction that stays open keeps a stream with more gaps from going on, and ``availableNow`` ends before them.
With ``singleWriter`` no gap is watched.

**Names.** A stream of one table has the table by the name of its first start: another spelling of ``dbtable`` is refused.

**Times** past the database's clock wait. A limit of rows never cuts inside equal times, so it may be exceeded by one group.
Times without a zone are a wall clock in ``timeZone``: the hour that comes twice in autumn is read after its second pass;
dates are read when their day is over. Rows without a key are left out and counted (``rows without a key`` among the
partitions of the metrics).

**Tables** come and go. A new one is read from its beginning; one that was dropped ends without an error, also when a task
finds out first; PostgreSQL tells one that was made anew under the same name. Columns that appear are in the JSON of later
rows, and are reported; another type of a column stops the query, or with ``onTypeChange=cast`` goes on: one table with the
stream's own types, many tables with those that they have now. :func:`fan_out` makes one Delta table of each.
"""
