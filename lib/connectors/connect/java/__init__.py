"""Java connectors in a child JVM over py4j, without compiled Java: no jar is part of this library.

:mod:`.jars` finds what a connector needs, :mod:`.jvm` owns the process, :mod:`.handles` implements Connect's interfaces with
method handles, :mod:`.tasks` runs tasks in threads of the JVM, and :mod:`.source_host` and :mod:`.sink_host` are the hosts.
"""
