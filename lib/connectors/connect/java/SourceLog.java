package connectors.connect.java;

import java.util.Map;

/** The log of a database, as a start sees it. */
public interface SourceLog {
    /**
     * Called before a task starts, in its thread: makes sure that the log still has all behind the offset, and prepares a snapshot
     * where one is to be taken.
     *
     * Returns the identity of the database. Throws LostPosition where the log is another one, or has lost a part.
     */
    String prepare(Map offset, boolean snapshot, String system);
}
