package connectors.connect.java;

import java.util.List;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Polls a task until it is told to stop, and puts what it gets into a queue. */
public final class PollLoop implements Callable {
    private static final long WAIT = 20000000L;

    private final int number;
    private final SourceTask task;
    private final OffsetReader reader;
    private final PolledQueue queue;
    private volatile boolean isRunning = true;
    private int lists = 0;
    private int longest = 0;
    private long restBegin = 0L;
    private int restLists = 0;

    public PollLoop(int number, SourceTask task, OffsetReader reader, PolledQueue queue) {
        this.number = number;
        this.task = task;
        this.reader = reader;
        this.queue = queue;
    }

    public Object call() throws InterruptedException {
        long begin = System.nanoTime(); // of the poll, or of the first of those that gave nothing
        while (isRunning) {
            List records = task.poll();
            int size = records == null ? 0 : records.size();
            note(size, begin, System.nanoTime());
            if (size > 0) {
                queue.put(new PolledList(number, reader, records, lists));
                begin = System.nanoTime();
            }
        }
        return null;
    }

    /**
     * For how many milliseconds the task has given only what has just come to be: nothing, or few records that it had to wait for,
     * far fewer than a poll may give; -1 while it gives more.
     */
    public synchronized long rest() {
        return restBegin == 0L ? -1L : (System.nanoTime() - restBegin) / 1000000L;
    }

    /** How many lists the task gave before it rested. */
    public synchronized int listsBeforeRest() {
        return restLists;
    }

    private synchronized void note(int size, long begin, long end) {
        boolean rests = size == 0 || end - begin >= WAIT && (size == 1 || size * 10 <= longest);
        if (!rests) {
            restBegin = 0L;
        } else if (restBegin == 0L) {
            restBegin = end;
            restLists = lists;
        }
        lists += size == 0 ? 0 : 1;
        longest = Math.max(longest, size);
    }

    /** Ends the loop after the poll that is under way. */
    public void stop() {
        isRunning = false;
    }

    /**
     * Tells the task that records are committed. As in Connect, one that became no row has no metadata. A row has metadata of its
     * topic without an offset (hasOffset() is false), as it lies in no topic of Kafka: a connector cannot note where it lies there.
     * A task that has started again since hears nothing: the position may not be one of the log that it reads now.
     */
    public void commitRecords(PolledList list) throws InterruptedException {
        if (list.reader != reader || list.start != reader.start()) {
            return;
        }
        for (int index = 0; index < list.size(); index++) {
            SourceRecord record = (SourceRecord) list.get(index);
            if (record != null) {
                task.commitRecord(record, list.isRow(index) ? metadata(record) : null);
            }
        }
    }

    private static RecordMetadata metadata(SourceRecord record) {
        int partition = record.kafkaPartition() == null ? 0 : record.kafkaPartition().intValue();
        long time = record.timestamp() == null ? -1L : record.timestamp().longValue();
        return new RecordMetadata(new TopicPartition(record.topic(), partition), -1L, 0, time, -1, -1);
    }
}
