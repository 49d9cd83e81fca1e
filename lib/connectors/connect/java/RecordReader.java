package connectors.connect.java;

import java.io.DataInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.sink.SinkRecord;

/** Makes the records of a sink out of the rows in a file: converts and transforms them. */
public final class RecordReader {
    private static final long NULL = Long.MIN_VALUE;

    private final Steps steps;
    private final RowFile file;
    private final RowFile.Cells topics;
    private final DataInputStream partitions;
    private final DataInputStream offsets;
    private final DataInputStream timestamps;
    private final RowFile.Cells keys;
    private final RowFile.Cells values;
    private final DataInputStream headerCounts;
    private final RowFile.Cells headerKeys;
    private final RowFile.Cells headerValues;
    private final Map ends = new HashMap();
    private Throwable failure = null;

    public RecordReader(Steps steps, String path, List sizes) throws IOException {
        this.steps = steps;
        file = new RowFile(path, sizes);
        topics = file.cells();
        partitions = file.numbers();
        offsets = file.numbers();
        timestamps = file.numbers();
        keys = file.cells();
        values = file.cells();
        headerCounts = file.numbers();
        headerKeys = file.cells();
        headerValues = file.cells();
    }

    /** Adds the records of the next rows to a list, up to a row that fails. Returns how many rows were before that one. */
    public int read(int rows, List records) throws IOException {
        failure = null;
        for (int row = 0; row < rows; row++) {
            Row next = new Row();
            try {
                ConnectRecord record = steps.transformed(next.record());
                if (record != null) {
                    records.add(record);
                    next.noteEnd();
                }
            } catch (Throwable thrown) {
                failure = thrown;
                return row;
            }
        }
        return rows;
    }

    /** What was thrown for the row at which the last call of read has ended, else null. */
    public Throwable failure() {
        return failure;
    }

    /** The offset behind the last record of each topic and partition of the rows, whatever the transforms made of these. */
    public Map ends() {
        return ends;
    }

    public void close() throws IOException {
        file.close();
    }

    /** The next row. It is read whole, also where it fails, so that the row behind it can be read. */
    private final class Row {
        private final String topic;
        private final int partition;
        private final long offset;
        private final long timestamp;
        private final byte[] key;
        private final byte[] value;
        private final String[] names;
        private final byte[][] headers;

        Row() throws IOException {
            topic = text(topics.next());
            partition = (int) partitions.readLong();
            offset = offsets.readLong();
            timestamp = timestamps.readLong();
            key = keys.next();
            value = values.next();
            names = new String[(int) headerCounts.readLong()];
            headers = new byte[names.length][];
            for (int index = 0; index < names.length; index++) {
                names[index] = text(headerKeys.next());
                headers[index] = headerValues.next();
            }
        }

        void noteEnd() {
            TopicPartition place = new TopicPartition(topic, partition);
            Long known = (Long) ends.get(place);
            if (known == null || known.longValue() <= offset) {
                ends.put(place, Long.valueOf(offset + 1));
            }
        }

        SinkRecord record() {
            SchemaAndValue recordKey = steps.toKey(topic, key);
            SchemaAndValue recordValue = steps.toValue(topic, value);
            ConnectHeaders recordHeaders = new ConnectHeaders();
            for (int index = 0; index < names.length; index++) {
                recordHeaders.add(names[index], steps.toHeader(topic, names[index], headers[index]));
            }
            Long time = timestamp == NULL ? null : Long.valueOf(timestamp);
            return new SinkRecord(
                topic, partition, recordKey.schema(), recordKey.value(), recordValue.schema(), recordValue.value(), offset, time,
                TimestampType.CREATE_TIME, recordHeaders);
        }
    }

    private static String text(byte[] utf8) {
        return utf8 == null ? null : new String(utf8, StandardCharsets.UTF_8);
    }
}
