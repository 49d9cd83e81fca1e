"""Java connectors in a child JVM over py4j: no jar is part of this library.

:mod:`.jars` finds what a connector needs, :mod:`.jvm` owns the process, :mod:`.source_host` and :mod:`.sink_host` the hosts.
What runs for each record is Java: the ``.java`` files beside this one, which the child compiles when it needs them.

======================  ================================================================================================
``Steps``               transforms and converters
``PollLoop``            polls a task, into a ``PolledQueue`` of ``PolledList``
``RecordWriter``        records of a source become rows: ``Column`` by ``Column`` in a ``ColumnFile``
``RecordReader``        rows in a ``RowFile`` become records of a sink
``Context``             what Connect's runtime answers to connectors and tasks; with it the ``OffsetReader``
``AtExit``              stops connectors and tasks when the process that has started the JVM is gone
``OffsetStore``         the ``SourcePosition`` of each source partition: where a start goes on, and what it drops
``PostgresLog``         a ``SourceLog``: looks before a start whether slot and database still have what follows
======================  ================================================================================================

The compiler is Janino. It knows no lambdas, and takes generic types for what they are without their arguments: hence the casts.
"""
