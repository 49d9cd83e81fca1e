package connectors.connect.java;

import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.kafka.connect.storage.OffsetStorageReader;

/**
 * The offsets as one life of a task reads them.
 *
 * A task that starts goes on behind what it has handed over. At all other times the answer is what is committed, as
 * Connect's is.
 */
public final class OffsetReader implements OffsetStorageReader {
    private final OffsetStore store;
    /** The number of the start that is under way or was last. The store guards it. */
    int start = 0;
    /** A start has begun a snapshot anew, and no row was handed over since. */
    boolean isAgain = false;

    OffsetReader(OffsetStore store) {
        this.store = store;
    }

    public Map offset(Map partition) {
        return isStarting() ? store.start(this, partition) : store.committed(partition);
    }

    public Map offsets(Collection partitions) {
        Map offsets = new HashMap();
        for (Iterator each = partitions.iterator(); each.hasNext();) {
            Map partition = (Map) each.next();
            offsets.put(partition, offset(partition));
        }
        return offsets;
    }

    int start() {
        synchronized (store) {
            return start;
        }
    }

    /** True while this thread starts a task or connector; Debezium starts itself again while it is polled. */
    private static boolean isStarting() {
        StackTraceElement[] frames = new Throwable().getStackTrace();
        for (int index = 0; index < frames.length; index++) {
            if (frames[index].getMethodName().equals("start") && !frames[index].getClassName().startsWith("connectors.")) {
                return true;
            }
        }
        return false;
    }
}
