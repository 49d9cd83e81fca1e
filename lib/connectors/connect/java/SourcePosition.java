package connectors.connect.java;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Where a source partition is, and from where a start goes on.
 *
 * Connect's connectors go on from the newest offset. Debezium goes on behind the position of that offset, and many records may
 * have one position: the rows of a COPY, or the delete and the create of a row whose key changes. So a start of Debezium goes on
 * from the beginning of the newest transaction. The database sends that one again, as a whole and in the same order, and what
 * was handed over of it is dropped: so many records of each topic. If the transaction does not come again, nothing is dropped.
 *
 * Behind a blocking snapshot Debezium goes on with the columns that the tables have now, also where the log is older: values would
 * stand in other columns. So the task starts again there, and the database sends the columns of that time.
 */
final class SourcePosition {
    /** The prefix of the messages in a database's log that are no rows of anybody: they move the position alone. */
    static final String MARK = "connectors.slot";
    private static final String INCREMENTAL = "incremental_snapshot_";
    /** What an offset says of a place inside a transaction. */
    private static final List WITHIN = Arrays.asList(new Object[] {
        "lsn_proc", "messageType", "event", "row", "event_serial_no", "snapshot", "last_snapshot_record", "snapshot_completed"
    });

    /** The fields that name a transaction; none where a start goes on from the offset; null for a connector that is not Debezium. */
    private final String[] names;
    private Map offset = null;
    /** How many records of each topic were handed over of the newest transaction; null outside of one. */
    private Map<String, Integer> records = null;
    /** How many of them are still to come again. */
    private Map<String, Integer> expected = new HashMap<String, Integer>();
    /** The identity of the database. */
    String system = null;
    /** The first snapshot has ended: one that begins later is another. */
    boolean isRead = false;
    /** Rows of a blocking snapshot have come since the start. */
    private boolean hasBlocked = false;
    /** The offset of the change behind a blocking snapshot from which the log was to be read again. */
    private Map restart = null;

    SourcePosition(String[] names) {
        this.names = names;
    }

    SourcePosition(String[] names, Map offset, Map<String, Integer> records, String system, boolean isRead) {
        this.names = names;
        this.offset = offset;
        this.records = records;
        this.system = system;
        this.isRead = isRead;
    }

    SourcePosition copy() {
        SourcePosition copy = new SourcePosition(names, offset, counts(records), system, isRead);
        copy.expected = counts(expected);
        copy.hasBlocked = hasBlocked;
        copy.restart = restart;
        return copy;
    }

    /** The newest offset; null if there is none. */
    Map offset() {
        return offset;
    }

    Map<String, Integer> records() {
        return records;
    }

    /** Expects again what was handed over of the newest transaction, and returns the offset from which a task is to start. */
    Map start() {
        hasBlocked = false;
        if (offset != null && offset.isEmpty()) {
            offset = null;
            records = null;
        }
        expected = records == null ? new HashMap<String, Integer>() : counts(records);
        if (records == null) {
            return offset;
        }
        Map start = new HashMap(offset);
        for (Iterator each = offset.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (WITHIN.contains(name) || name.startsWith("transaction_")) {
                start.remove(name);
            }
        }
        if (offset.get("lsn_commit") != null) {
            start.put("lsn", offset.get("lsn_commit")); // PostgreSQL sends the transactions whose commits lie behind that
        }
        return start;
    }

    /** True while an initial snapshot is taken, which a start begins again. */
    boolean isInSnapshot() {
        return names != null && offset != null && isInitial(snapshotOf(offset)) && !isTrue("snapshot_completed") && !isTrue("last_snapshot_record");
    }

    /**
     * True for the first change of the log behind a blocking snapshot: a start must come before it. The marks of a transaction have
     * no columns, and its end does not come again behind its commit.
     */
    boolean needsStart(SourceRecord record) {
        return hasBlocked && snapshotOf(record).isEmpty() && !isHeartbeat(record) && !isOf(record, "TransactionMetadataValue");
    }

    /** The next start is to go on with the transaction of a record. False if it did before: the snapshot is asked for inside of it. */
    boolean startBefore(SourceRecord record) {
        Map next = (Map) record.sourceOffset();
        if (restart != null && isOneTransaction(restart, next)) {
            return false;
        }
        restart = next;
        if (records == null || !isOneTransaction(offset, next)) {
            offset = next;
            records = new HashMap<String, Integer>();
        }
        isRead = true;
        return true;
    }

    /** Notes a record that was polled; false if it was handed over before. */
    boolean add(SourceRecord record) {
        Map next = (Map) record.sourceOffset();
        String snapshot = snapshotOf(record);
        if (snapshot.equals("blocking")) {
            hasBlocked = names.length > 0;
            return true; // its offset lies ahead of the log, which stands still meanwhile
        }
        if (names == null || names.length == 0 || next == null || isInitial(snapshot)) {
            offset = next;
            isRead = isRead || next != null && !isInSnapshot();
            records = null;
            expected.clear();
            return true;
        }
        // Chunks of an incremental snapshot and heartbeats do not come again at the same place.
        boolean isOfLog = snapshot.isEmpty() && !isHeartbeat(record);
        if (!isOfLog && offset == null && !snapshot.equals("incremental")) {
            return true; // before the first record there is no position: Debezium's own may lie ahead of the slot
        }
        if (records == null || !isOneTransaction(offset, next)) {
            if (!expected.isEmpty() && !isOfLog) {
                offset = withSnapshot(next);
                return true;
            }
            records = new HashMap<String, Integer>();
            expected.clear();
        } else if (!isOfLog) {
            offset = withSnapshot(next);
            return true;
        } else if (!isAhead(next) && isExpected(record.topic())) {
            return false;
        }
        offset = next;
        isRead = true;
        if (isOfLog) {
            Integer count = (Integer) records.get(record.topic());
            records.put(record.topic(), Integer.valueOf(count == null ? 1 : count.intValue() + 1));
        }
        return true;
    }

    static boolean isMark(SourceRecord record) {
        return MARK.equals(field(field(record.value(), "message"), "prefix"));
    }

    /** When a change of the log happened; 0 if the record does not tell, or is of a snapshot. */
    static long time(SourceRecord record) {
        Object time = snapshot(record.value()).isEmpty() ? field(field(record.value(), "source"), "ts_ms") : null;
        return time == null ? 0L : ((Number) time).longValue();
    }

    /** True for an lsn behind the newest one, which was not handed over, however many records come again before it. */
    private boolean isAhead(Map next) {
        Object lsn = next.get("lsn");
        Object newest = offset.get("lsn");
        return lsn instanceof Number && newest instanceof Number && ((Number) lsn).longValue() > ((Number) newest).longValue();
    }

    private boolean isExpected(String topic) {
        Integer count = (Integer) expected.remove(topic);
        if (count != null && count.intValue() > 1) {
            expected.put(topic, Integer.valueOf(count.intValue() - 1));
        }
        return count != null;
    }

    private boolean isOneTransaction(Map offset, Map next) {
        for (int index = 0; index < names.length; index++) {
            if (!Objects.equals(text(offset, names[index]), text(next, names[index]))) {
                return false;
            }
        }
        return true;
    }

    /** The newest offset, with the progress of an incremental snapshot that another one tells. */
    private Map withSnapshot(Map next) {
        Map offset = new HashMap(this.offset);
        for (Iterator each = this.offset.keySet().iterator(); each.hasNext();) {
            String name = (String) each.next();
            if (name.startsWith(INCREMENTAL)) {
                offset.remove(name);
            }
        }
        for (Iterator each = next.entrySet().iterator(); each.hasNext();) {
            Map.Entry entry = (Map.Entry) each.next();
            if (((String) entry.getKey()).startsWith(INCREMENTAL)) {
                offset.put(entry.getKey(), entry.getValue());
            }
        }
        return offset;
    }

    private boolean isTrue(String name) {
        return "true".equals(text(offset, name));
    }

    private static boolean isInitial(String snapshot) {
        return !snapshot.isEmpty() && !snapshot.equals("incremental");
    }

    /** The kind of snapshot that a record is of; empty for one of the log, or of another connector. */
    private String snapshotOf(SourceRecord record) {
        Map offset = (Map) record.sourceOffset();
        String snapshot = names == null || offset == null ? "" : snapshotOf(offset);
        // The offset of the last record is the one from which the log is read.
        return names == null || !snapshot.isEmpty() ? snapshot : snapshot(record.value());
    }

    /** The same, as an offset tells it. Earlier versions of Debezium write true for initial. */
    private static String snapshotOf(Map offset) {
        Object kind = offset.containsKey("initsync") ? offset.get("initsync") : offset.get("snapshot");
        return kind(kind);
    }

    private static String kind(Object kind) {
        String text = kind == null ? "" : kind.toString().toLowerCase(Locale.ROOT);
        return text.equals("false") ? "" : text;
    }

    /** The same, as the event itself tells it. */
    private static String snapshot(Object value) {
        Object source = field(value, "source");
        return kind(field(source, "snapshot"));
    }

    private static Object field(Object value, String name) {
        boolean exists = value instanceof Struct && ((Struct) value).schema().field(name) != null;
        return exists ? ((Struct) value).get(name) : null;
    }

    private static boolean isHeartbeat(SourceRecord record) {
        return isOf(record, "Heartbeat") || isOf(record, "Notification");
    }

    /** True for a record of Debezium's own with this schema. */
    private static boolean isOf(SourceRecord record, String schema) {
        String name = record.valueSchema() == null ? null : record.valueSchema().name();
        return name != null && name.endsWith(".connector.common." + schema);
    }

    private static String text(Map offset, String name) {
        Object value = offset.get(name);
        return value == null ? null : value.toString();
    }

    private static Map<String, Integer> counts(Map<String, Integer> counts) {
        return counts == null ? null : new HashMap<String, Integer>(counts);
    }
}
