package connectors.connect.java;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.OffsetStorageReader;

/**
 * The offsets of source partitions.
 *
 * A task that starts goes on behind what it has handed over. At all other times the answer is what is committed, as
 * Connect's is: Debezium asks for it, and lets PostgreSQL forget what comes before.
 *
 * Partitions are compared by their JSON, as Connect does: the number 1 is the same as an Integer and as a Long.
 */
public final class OffsetReader implements OffsetStorageReader {
    private final ObjectMapper json = new ObjectMapper();
    private final JsonConverter converter = new JsonConverter();
    private final Map<String, Map> handedOver = new ConcurrentHashMap<String, Map>();
    private final Map<String, Map> committed = new ConcurrentHashMap<String, Map>();

    public OffsetReader() {
        json.configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true);
        converter.configure(Collections.singletonMap("schemas.enable", "false"), false);
    }

    public Map offset(Map partition) {
        Map<String, Map> offsets = isStarting() ? handedOver : committed;
        return (Map) offsets.get(text(partition));
    }

    public Map offsets(Collection partitions) {
        Map found = new HashMap();
        for (Iterator each = partitions.iterator(); each.hasNext();) {
            Map partition = (Map) each.next();
            found.put(partition, offset(partition));
        }
        return found;
    }

    /** Adds what was handed over: the JSON of a list with pairs of partition and offset; the offset null removes one. */
    public void put(String pairs) {
        add(pairs, handedOver);
    }

    /** Adds what is committed. */
    public void commit(String pairs) {
        add(pairs, committed);
    }

    private void add(String pairs, Map<String, Map> offsets) {
        List list = (List) converter.toConnectData("", pairs.getBytes(StandardCharsets.UTF_8)).value();
        for (int index = 0; index < list.size(); index++) {
            List pair = (List) list.get(index);
            String partition = text((Map) pair.get(0));
            if (pair.get(1) == null) {
                offsets.remove(partition);
            } else {
                offsets.put(partition, (Map) pair.get(1));
            }
        }
    }

    public void clear() {
        handedOver.clear();
        committed.clear();
    }

    /** True while this thread starts a task or connector; Debezium starts itself again while it is polled. */
    private static boolean isStarting() {
        StackTraceElement[] frames = new Throwable().getStackTrace();
        for (int index = 0; index < frames.length; index++) {
            if (frames[index].getMethodName().equals("start")) {
                return true;
            }
        }
        return false;
    }

    private String text(Map partition) {
        try {
            return json.writeValueAsString(partition);
        } catch (JsonProcessingException error) {
            throw new ConnectException("a source partition is no JSON: " + partition, error);
        }
    }
}
