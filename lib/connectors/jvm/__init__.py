"""The start of a JVM on this machine: :mod:`.java` finds a Java, :mod:`.maven` fetches jars from a Maven repository."""
