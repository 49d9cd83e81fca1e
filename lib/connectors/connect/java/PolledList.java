package connectors.connect.java;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Records that a task has polled. They are copied, as the task may use its own list again. */
public final class PolledList {
    private final int task;
    private final List<Object> records;

    public PolledList(int task, List records) {
        this.task = task;
        this.records = new ArrayList<Object>(records);
    }

    public int task() {
        return task;
    }

    public List records() {
        return records;
    }

    public Object get(int index) {
        return records.get(index);
    }

    /** The last record alone. */
    public List newest() {
        return Collections.singletonList(records.get(records.size() - 1));
    }

    public int size() {
        return records.size();
    }

    void append(PolledList list) {
        records.addAll(list.records);
    }
}
