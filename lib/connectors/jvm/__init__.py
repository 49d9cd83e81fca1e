"""What a JVM on this machine starts with: :mod:`.java` finds a Java, :mod:`.maven` fetches jars from a Maven repository."""
