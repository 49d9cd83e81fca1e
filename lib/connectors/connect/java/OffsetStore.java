package connectors.connect.java;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.fasterxml.jackson.databind.util.RawValue;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * The positions of source partitions: those that are handed over, from which a task starts, and the offsets that are committed.
 *
 * Partitions are compared by their JSON, as Connect does: the number 1 is the same as an Integer and as a Long. A connector reads
 * its offsets as JSON gives them, too.
 */
public final class OffsetStore {
    private final ObjectMapper json = new ObjectMapper();
    private final JsonConverter converter = new JsonConverter();
    private final String[] transaction;
    private final String settings;
    private final boolean takesSnapshots;
    private final boolean repairs;
    private final SourceLog log;
    private final Map<String, SourcePosition> positions = new HashMap<String, SourcePosition>();
    private final Map<String, Map> committed = new HashMap<String, Map>();
    private final Map<Integer, OffsetReader> readers = new HashMap<Integer, OffsetReader>();

    /**
     * Of Debezium, transaction has the fields of an offset that name a transaction; else it is null. settings stands for what
     * decides which records a transaction has. takesSnapshots says that each start takes a snapshot, repairs that one does whose
     * position is lost. The log may be null.
     */
    public OffsetStore(List transaction, String settings, boolean takesSnapshots, boolean repairs, SourceLog log) {
        json.configure(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS, true);
        converter.configure(Collections.singletonMap("schemas.enable", "false"), false);
        this.transaction = transaction == null ? null : (String[]) transaction.toArray(new String[0]);
        this.settings = settings;
        this.takesSnapshots = takesSnapshots;
        this.repairs = repairs;
        this.log = log;
    }

    /** What the next life of a task reads. Lists of its earlier lives count no more. */
    public synchronized OffsetReader reader(int task) {
        OffsetReader reader = new OffsetReader(this);
        readers.put(Integer.valueOf(task), reader);
        return reader;
    }

    /** Sets all positions: the JSON of a list of partition, offset, and what a start needs beside it, or null. */
    public synchronized void reset(String entries) {
        positions.clear();
        committed.clear();
        List list = list(entries);
        for (int index = 0; index < list.size(); index++) {
            List entry = (List) list.get(index);
            String partition = text((Map) entry.get(0));
            Map offset = (Map) entry.get(1);
            Map group = entry.get(2) == null ? Collections.EMPTY_MAP : (Map) entry.get(2);
            Map<String, Integer> records = transaction == null ? null : counts((Map) group.get("records"));
            boolean isRead = Boolean.TRUE.equals(group.get("read"));
            positions.put(partition, new SourcePosition(transaction, offset, records, (String) group.get("system"), isRead));
            committed.put(partition, offset);
        }
    }

    /** What a connector may be asked about: the JSON of a list with pairs of partition and offset. */
    public Map offsets(String pairs) {
        Map<Map, Map> offsets = new HashMap<Map, Map>();
        List list = list(pairs);
        for (int index = 0; index < list.size(); index++) {
            List pair = (List) list.get(index);
            offsets.put((Map) pair.get(0), (Map) pair.get(1));
        }
        return offsets;
    }

    /** Adds what is committed: the JSON of a list with pairs of partition and offset; the offset null removes one. */
    public synchronized void commit(String pairs) {
        List list = list(pairs);
        for (int index = 0; index < list.size(); index++) {
            List pair = (List) list.get(index);
            committed.put(text((Map) pair.get(0)), (Map) pair.get(1));
        }
    }

    /**
     * Takes from a list the records that were handed over before, and those behind a place where a start must come, and notes where
     * the others lead.
     *
     * Returns false for a list of a start that is over: it comes again.
     */
    public synchronized boolean enter(PolledList list) {
        if (!isCurrent(list)) {
            return false;
        }
        list.isAgain = list.reader.isAgain;
        List<Object> records = new ArrayList<Object>(list.size());
        for (Iterator each = list.records().iterator(); each.hasNext();) {
            SourceRecord record = (SourceRecord) each.next();
            if (record != null && record.sourcePartition() != null && position(list, record).needsStart(record)) {
                list.next = position(list, record).startBefore(record) ? "start" : "stop";
                break;
            }
            if (record != null && (record.sourcePartition() == null || position(list, record).add(record))) {
                records.add(record);
                list.time = transaction == null ? 0L : Math.max(list.time, SourcePosition.time(record));
            }
        }
        list.keep(records);
        return true;
    }

    /** The rows of a list are handed over next. Returns false if its task has started again meanwhile: they come again. */
    public synchronized boolean accept(PolledList list, int rows) {
        if (!isCurrent(list)) {
            return false;
        }
        positions.putAll(list.positions);
        if (rows > 0) {
            list.reader.isAgain = false;
        }
        return true;
    }

    synchronized Map committed(Map partition) {
        return (Map) committed.get(text(partition));
    }

    /** Begins a start of a task, and returns the offset from which it goes on. */
    Map start(OffsetReader reader, Map partition) {
        SourcePosition position;
        Map start;
        boolean takesSnapshot;
        synchronized (this) {
            String name = text(partition);
            position = (SourcePosition) positions.get(name);
            if (position == null) {
                position = new SourcePosition(transaction);
                positions.put(name, position);
            }
            start = position.start();
            takesSnapshot = start == null || takesSnapshots || position.isInSnapshot();
            if (transaction != null) { // Debezium starts itself again while it is polled
                reader.start++;
                reader.isAgain = reader.isAgain || position.isInSnapshot() && !position.isRead;
            }
        }
        if (log != null) {
            try {
                position.system = log.prepare(position.offset(), takesSnapshot, position.system);
            } catch (LostPosition lost) {
                if (!repairs) {
                    throw lost;
                }
                position.system = log.prepare(null, true, null);
                start = null;
                synchronized (this) {
                    reader.isAgain = true;
                    position.isRead = false;
                }
            }
        }
        return start == null ? null : plain(start);
    }

    /** Adds to a report the partitions of a list with their newest offsets and what a start needs beside them. */
    void report(PolledList list, ArrayNode report) {
        for (Iterator each = list.positions.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            SourcePosition position = (SourcePosition) entry.getValue();
            if (position.offset() == null) {
                continue; // nothing but heartbeats and notifications came
            }
            ArrayNode node = report.addArray().addRawValue(new RawValue((String) entry.getKey())).addPOJO(position.offset());
            if (position.records() == null && position.system == null && (transaction == null || !position.isRead)) {
                node.addNull();
            } else {
                ObjectNode group = node.addObject().put("system", position.system).put("settings", settings);
                group.put("read", position.isRead);
                group.putPOJO("records", position.records());
            }
        }
    }

    private boolean isCurrent(PolledList list) {
        return list.reader == readers.get(Integer.valueOf(list.task())) && list.start == list.reader.start;
    }

    private SourcePosition position(PolledList list, SourceRecord record) {
        String name = list.name(record.sourcePartition());
        if (name == null) {
            name = list.name(record.sourcePartition(), text(record.sourcePartition()));
        }
        SourcePosition position = (SourcePosition) list.positions.get(name);
        if (position == null) {
            SourcePosition known = (SourcePosition) positions.get(name);
            position = known == null ? new SourcePosition(transaction) : known.copy();
            list.positions.put(name, position);
        }
        return position;
    }

    private List list(String text) {
        return (List) converter.toConnectData("", text.getBytes(StandardCharsets.UTF_8)).value();
    }

    /** An offset as JSON gives it: an Integer is a Long. */
    private Map plain(Map offset) {
        return (Map) list("[" + text(offset) + "]").get(0);
    }

    private String text(Map map) {
        try {
            return json.writeValueAsString(map);
        } catch (JsonProcessingException error) {
            throw new ConnectException("a source partition or offset is no JSON: " + map, error);
        }
    }

    private static Map<String, Integer> counts(Map numbers) {
        if (numbers == null) {
            return null;
        }
        Map<String, Integer> counts = new HashMap<String, Integer>();
        for (Iterator each = numbers.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            counts.put((String) entry.getKey(), Integer.valueOf(((Number) entry.getValue()).intValue()));
        }
        return counts;
    }
}
