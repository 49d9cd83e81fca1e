package connectors.connect.java;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Records that a task has polled. They are copied, as the task may use its own list again. */
public final class PolledList {
    private final int task;
    final OffsetReader reader;
    /** The start of the task after which it was polled. */
    final int start;
    /** Where its records lead, by source partition. */
    final Map<String, SourcePosition> positions = new LinkedHashMap<String, SourcePosition>();
    /** It is the first list after a start that has begun a snapshot anew. */
    boolean isAgain = false;
    /** What must follow it: "" for nothing, "start" for a start of the task, "stop" where that does not help. */
    String next = "";
    /** When its newest change happened in the database, as Debezium tells it: milliseconds since 1970; 0 if it does not. */
    long time = 0L;
    private int number;
    /** Which of the records became rows. */
    private final BitSet rows = new BitSet();
    private final Map<Map, String> names = new HashMap<Map, String>();
    private List<Object> records;

    /** The number counts the lists of a loop. */
    public PolledList(int task, OffsetReader reader, List records, int number) {
        this.number = number;
        this.task = task;
        this.reader = reader;
        this.start = reader.start();
        this.records = new ArrayList<Object>(records);
    }

    public int task() {
        return task;
    }

    public int number() {
        return number;
    }

    public List records() {
        return records;
    }

    public Object get(int index) {
        return records.get(index);
    }

    /** This list, as it waits for commitRecord: with all its records, or with the last one alone. */
    public PolledList retained(boolean newest) {
        for (int index = 0; newest && index < records.size() - 1; index++) {
            records.set(index, null);
        }
        return this;
    }

    boolean isRow(int index) {
        return rows.get(index);
    }

    void addRow(int index) {
        rows.set(index);
    }

    public int size() {
        return records.size();
    }

    boolean precedes(PolledList list) {
        return task == list.task && reader == list.reader && start == list.start;
    }

    void append(PolledList list) {
        records.addAll(list.records);
        number = list.number;
    }

    void keep(List<Object> records) {
        this.records = records;
    }

    /** The JSON of a source partition, as soon as it is known. */
    String name(Map partition) {
        return (String) names.get(partition);
    }

    String name(Map partition, String name) {
        names.put(partition, name);
        return name;
    }
}
