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
 * The offsets that connector and tasks begin at.
 *
 * Partitions are compared by their JSON, as Connect does: the number 1 is the same as an Integer and as a Long.
 */
public final class OffsetReader implements OffsetStorageReader {
    private final ObjectMapper json = new ObjectMapper();
    private final JsonConverter converter = new JsonConverter();
    private final Map<String, Map> offsets = new ConcurrentHashMap<String, Map>();

    public OffsetReader() {
        json.configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true);
        converter.configure(Collections.singletonMap("schemas.enable", "false"), false);
    }

    public Map offset(Map partition) {
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

    /** Adds offsets: the JSON of a list with a pair of partition and offset for each; the offset null removes one. */
    public void put(String pairs) {
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
        offsets.clear();
    }

    private String text(Map partition) {
        try {
            return json.writeValueAsString(partition);
        } catch (JsonProcessingException error) {
            throw new ConnectException("a source partition is no JSON: " + partition, error);
        }
    }
}
