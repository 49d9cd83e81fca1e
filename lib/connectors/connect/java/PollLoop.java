package connectors.connect.java;

import java.util.List;
import java.util.concurrent.Callable;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Polls a task until it is told to stop, and puts what it gets into a queue. */
public final class PollLoop implements Callable {
    private final int number;
    private final SourceTask task;
    private final OffsetReader reader;
    private final PolledQueue queue;
    private volatile boolean isRunning = true;

    public PollLoop(int number, SourceTask task, OffsetReader reader, PolledQueue queue) {
        this.number = number;
        this.task = task;
        this.reader = reader;
        this.queue = queue;
    }

    public Object call() throws InterruptedException {
        while (isRunning) {
            List records = task.poll();
            if (records != null && !records.isEmpty()) {
                queue.put(new PolledList(number, reader, records));
            }
        }
        return null;
    }

    /** Ends the loop after the poll that is under way. */
    public void stop() {
        isRunning = false;
    }

    public void commitRecords(List records) throws InterruptedException {
        for (int index = 0; index < records.size(); index++) {
            task.commitRecord((SourceRecord) records.get(index), null);
        }
    }
}
