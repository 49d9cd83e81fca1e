package connectors.connect.java;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;

/** Makes rows of the records of a source: transforms and converts them, and writes the columns of all rows into a file. */
public final class RecordWriter {
    private static final int MOST_RECORDS = 1 << 14;
    private static final long MOST_BYTES = 8L << 20;

    private final Steps steps;
    private final OffsetStore store;
    private final ColumnFile file;
    private final ObjectMapper json = new ObjectMapper();
    /** Source partitions, of which there are few, by what the connector calls them. */
    private final Map<Map, Partition> partitions = new HashMap<Map, Partition>();
    private Throwable failure = null;

    private final Column.Cells topics = new Column.Cells();
    private final Column.Numbers kafkaPartitions = new Column.Numbers(32);
    private final Column.Cells keys = new Column.Cells();
    private final Column.Cells values = new Column.Cells();
    private final Column.Lists headers = new Column.Lists();
    private final Column.Cells headerKeys = new Column.Cells();
    private final Column.Cells headerValues = new Column.Cells();
    private final Column.Numbers timestamps = new Column.Numbers(64);
    private final Column.Cells sourcePartitions = new Column.Cells();
    private final Column.Cells sourceOffsets = new Column.Cells();
    private final Column[] columns = {
        topics, kafkaPartitions, keys, values, headers, headerKeys, headerValues, timestamps, sourcePartitions, sourceOffsets
    };

    public RecordWriter(Steps steps, OffsetStore store, String path) throws IOException {
        this.steps = steps;
        this.store = store;
        this.file = new ColumnFile(path);
    }

    /**
     * Writes the rows of the records from the index first on: up to one that fails, or until the rows are many.
     *
     * Returns a report as JSON. "size" is the number of records. "end" is the index of the first record that is not done, and
     * "failed" is true if that one has failed. "length" is how long the file is; "columns" are the rows, nulls, and bytes or
     * items of each column. "offsets" are the source partitions of the list, each with its newest offset and what a start needs beside that, or null.
     * "again" says that a snapshot has begun anew before the list, "time" when its newest change happened, "next" what must follow
     * it: a "start" of the task, or a "stop".
     */
    public String write(PolledList polled, int first) throws IOException {
        List records = polled.records();
        int index = first;
        begin();
        try {
            while (index < records.size() && index - first < MOST_RECORDS && bytes() < MOST_BYTES) {
                add(polled, index);
                index++;
            }
        } catch (Throwable thrown) {
            failure = thrown;
        }
        for (int column = 0; column < columns.length; column++) {
            columns[column].write(file);
        }
        return report(polled, index, file.end());
    }

    /** What was thrown for the record at which the last call of write has ended, else null. */
    public Throwable failure() {
        return failure;
    }

    public void close() throws IOException {
        file.close();
    }

    private void begin() throws IOException {
        failure = null;
        for (int column = 0; column < columns.length; column++) {
            columns[column].clear();
        }
        file.begin();
    }

    private long bytes() {
        return (long) keys.length() + values.length() + headerKeys.length() + headerValues.length() + sourceOffsets.length();
    }

    private void add(PolledList polled, int index) throws JsonProcessingException {
        SourceRecord record = (SourceRecord) polled.get(index);
        SourceRecord transformed = SourcePosition.isMark(record) ? null : (SourceRecord) steps.transformed(record);
        if (transformed != null) {
            addRow(transformed);
            polled.addRow(index);
        }
    }

    /** Adds a row, or fails before it has added more than headers, which no row has then. */
    private void addRow(SourceRecord record) throws JsonProcessingException {
        byte[] key = steps.fromKey(record);
        byte[] value = steps.fromValue(record);
        int headerCount = addHeaders(record);
        byte[] sourcePartition = partition(record.sourcePartition()).json();
        byte[] sourceOffset = record.sourceOffset() == null ? null : json.writeValueAsBytes(record.sourceOffset());
        topics.add(utf8(record.topic()));
        kafkaPartitions.add(record.kafkaPartition());
        keys.add(key);
        values.add(value);
        headers.add(headerCount == 0 ? -1 : headerCount);
        timestamps.add(record.timestamp());
        sourcePartitions.add(sourcePartition);
        sourceOffsets.add(sourceOffset);
    }

    private int addHeaders(ConnectRecord record) {
        int count = 0;
        for (Iterator each = record.headers().iterator(); each.hasNext(); count++) {
            Header header = (Header) each.next();
            byte[] value = steps.fromHeader(record, header);
            headerKeys.add(utf8(header.key()));
            headerValues.add(value);
        }
        return count;
    }

    private Partition partition(Map name) {
        Partition partition = (Partition) partitions.get(name);
        if (partition == null) {
            partition = new Partition(name);
            partitions.put(name, partition);
        }
        return partition;
    }

    private String report(PolledList polled, int end, long length) throws JsonProcessingException {
        ObjectNode report = json.createObjectNode();
        report.put("size", polled.size()).put("end", end).put("failed", failure != null).put("length", length);
        ArrayNode sizes = report.putArray("columns");
        for (int index = 0; index < columns.length; index++) {
            sizes.addArray().add(columns[index].rows()).add(columns[index].nulls()).add(columns[index].length());
        }
        store.report(polled, report.putArray("offsets"));
        report.put("again", polled.isAgain).put("time", polled.time).put("number", polled.number()).put("next", polled.next);
        return json.writeValueAsString(report);
    }

    private static byte[] utf8(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    /** A source partition, with its JSON as soon as a row needs it. */
    private final class Partition {
        final Map name;
        private byte[] text = null;

        Partition(Map name) {
            this.name = name;
        }

        byte[] json() throws JsonProcessingException {
            if (text == null && name != null) {
                text = json.writeValueAsBytes(name);
            }
            return text;
        }
    }
}
