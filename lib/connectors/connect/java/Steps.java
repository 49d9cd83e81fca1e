package connectors.connect.java;

import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/** The transforms and converters of a connector. After an exception it tells which of them threw it. */
public final class Steps {
    private final Converter keyConverter;
    private final Converter valueConverter;
    private final HeaderConverter headerConverter;
    private final List<Transform> transforms = new ArrayList<Transform>();
    private String stage = "";
    private Object executing = this;

    public Steps(Converter keyConverter, Converter valueConverter, HeaderConverter headerConverter) {
        this.keyConverter = keyConverter;
        this.valueConverter = valueConverter;
        this.headerConverter = headerConverter;
    }

    /** Adds a transform of the records for which the predicate holds; with negate, of the others; without one, of all. */
    public void add(Transformation transformation, Predicate predicate, boolean negate) {
        transforms.add(new Transform(transformation, predicate, negate));
    }

    /** The transformed record; null where a transform drops it. */
    ConnectRecord transformed(ConnectRecord record) {
        ConnectRecord transformed = record;
        for (int index = 0; index < transforms.size() && transformed != null; index++) {
            Transform transform = (Transform) transforms.get(index);
            enter("TRANSFORMATION", transform.transformation);
            transformed = transform.apply(transformed);
        }
        return transformed;
    }

    byte[] fromKey(ConnectRecord record) {
        enter("KEY_CONVERTER", keyConverter);
        return keyConverter.fromConnectData(record.topic(), record.keySchema(), record.key());
    }

    byte[] fromValue(ConnectRecord record) {
        enter("VALUE_CONVERTER", valueConverter);
        return valueConverter.fromConnectData(record.topic(), record.valueSchema(), record.value());
    }

    byte[] fromHeader(ConnectRecord record, Header header) {
        enter("HEADER_CONVERTER", headerConverter);
        return headerConverter.fromConnectHeader(record.topic(), header.key(), header.schema(), header.value());
    }

    SchemaAndValue toKey(String topic, byte[] key) {
        enter("KEY_CONVERTER", keyConverter);
        return keyConverter.toConnectData(topic, key);
    }

    SchemaAndValue toValue(String topic, byte[] value) {
        enter("VALUE_CONVERTER", valueConverter);
        return valueConverter.toConnectData(topic, value);
    }

    SchemaAndValue toHeader(String topic, String name, byte[] value) {
        enter("HEADER_CONVERTER", headerConverter);
        return headerConverter.toConnectHeader(topic, name, value);
    }

    /** The stage that was entered last, in the words of Connect. */
    public String stage() {
        return stage;
    }

    /** The class of the transform or converter that ran last. */
    public String executingClass() {
        return executing.getClass().getName();
    }

    private void enter(String stage, Object executing) {
        this.stage = stage;
        this.executing = executing;
    }

    private static final class Transform {
        final Transformation transformation;
        private final Predicate predicate;
        private final boolean negate;

        Transform(Transformation transformation, Predicate predicate, boolean negate) {
            this.transformation = transformation;
            this.predicate = predicate;
            this.negate = negate;
        }

        ConnectRecord apply(ConnectRecord record) {
            boolean applies = predicate == null || predicate.test(record) != negate;
            return applies ? (ConnectRecord) transformation.apply(record) : record;
        }
    }
}
