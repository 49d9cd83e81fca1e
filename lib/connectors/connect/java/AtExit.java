package connectors.connect.java;

import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.connect.connector.Connector;
import org.apache.kafka.connect.connector.Task;

/** Stops tasks and connectors when the JVM ends because its parent is gone. It takes a while at most, then the JVM is halted. */
public final class AtExit extends Thread {
    private final List running = new CopyOnWriteArrayList();
    private final long milliseconds;

    public AtExit(long milliseconds) {
        this.milliseconds = milliseconds;
        Runtime.getRuntime().addShutdownHook(this);
    }

    /** Adds a task, or a connector, which is stopped behind its tasks. */
    public void add(Object taskOrConnector) {
        running.add(taskOrConnector);
    }

    /** Forgets all of them: they are stopped already, or must not be. */
    public void clear() {
        running.clear();
    }

    public void run() {
        Halt halt = new Halt();
        halt.setDaemon(true);
        halt.start();
        for (Iterator each = running.iterator(); each.hasNext();) {
            Object next = each.next();
            try {
                if (next instanceof Task) {
                    ((Task) next).stop();
                } else {
                    ((Connector) next).stop();
                }
            } catch (Throwable failed) {
                System.err.println(failed);
            }
        }
    }

    private final class Halt extends Thread {
        public void run() {
            try {
                Thread.sleep(milliseconds);
            } catch (InterruptedException ended) {
                return;
            }
            Runtime.getRuntime().halt(1);
        }
    }
}
