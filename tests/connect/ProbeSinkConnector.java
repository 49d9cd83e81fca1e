package probe;

import java.io.FileWriter;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.errors.RetriableException;
import org.apache.kafka.connect.sink.SinkConnector;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.sink.SinkTask;

/**
 * Writes what is asked of it, and the values of its records, into the file "log", line by line.
 *
 * "refuses" is a value that is reported, "rewinds" one whose record the task asks for again, "outages" how often the first put
 * empties its list and fails behind its reports, "acknowledges" false for a task that never tells how far it is, and "tasks" the
 * number of task configurations.
 */
public class ProbeSinkConnector extends SinkConnector {
    private Map<String, String> properties;

    public void start(Map<String, String> properties) {
        this.properties = properties;
        note(properties, "connector started");
    }

    public Class<? extends Task> taskClass() {
        return ProbeSinkTask.class;
    }

    public List<Map<String, String>> taskConfigs(int most) {
        int tasks = properties.containsKey("tasks") ? Integer.parseInt((String) properties.get("tasks")) : 1;
        return Collections.nCopies(tasks, properties);
    }

    public void stop() {
        note(properties, "connector stopped");
    }

    public ConfigDef config() {
        return new ConfigDef();
    }

    public String version() {
        return "1";
    }

    static void note(Map properties, String event) {
        try {
            FileWriter file = new FileWriter((String) properties.get("log"), true);
            file.write(event + "\n");
            file.close();
        } catch (IOException failed) {
            throw new RuntimeException(failed);
        }
    }

    public static class ProbeSinkTask extends SinkTask {
        private Map<String, String> properties;
        private int outages;

        public void start(Map<String, String> properties) {
            this.properties = properties;
            outages = properties.containsKey("outages") ? Integer.parseInt((String) properties.get("outages")) : 0;
            note(properties, "task started");
        }

        public void put(Collection<SinkRecord> records) {
            List values = new ArrayList();
            for (Iterator each = records.iterator(); each.hasNext();) {
                SinkRecord record = (SinkRecord) each.next();
                if (record.value().equals(properties.get("rewinds"))) {
                    context.offset(new TopicPartition(record.topic(), record.kafkaPartition().intValue()), record.kafkaOffset());
                } else if (record.value().equals(properties.get("refuses"))) {
                    context.errantRecordReporter().report(record, new RuntimeException("refused"));
                } else {
                    values.add(record.value());
                }
            }
            if (outages-- > 0) {
                records.clear();
                throw new RetriableException("the target is away");
            }
            for (int index = 0; index < values.size(); index++) {
                note(properties, "value " + values.get(index));
            }
        }

        public Map<TopicPartition, OffsetAndMetadata> preCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            return "false".equals(properties.get("acknowledges")) ? new HashMap<TopicPartition, OffsetAndMetadata>() : offsets;
        }

        public void stop() {
            note(properties, "task stopped");
        }

        public String version() {
            return "1";
        }
    }
}
