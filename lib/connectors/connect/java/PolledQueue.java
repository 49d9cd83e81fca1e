package connectors.connect.java;

import java.util.Iterator;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/** The lists that wait for the collector, in the order of their polls: so many records of all tasks, or one longer list. */
public final class PolledQueue {
    private final int most;
    private final Semaphore room;
    private final LinkedBlockingQueue<PolledList> lists = new LinkedBlockingQueue<PolledList>();

    public PolledQueue(int most) {
        this.most = most;
        this.room = new Semaphore(most, true);
    }

    /** Waits for room. */
    public void put(PolledList list) throws InterruptedException {
        room.acquire(share(list));
        lists.put(list);
    }

    /**
     * The next list, with those of the same start of its task behind it up to so many records in all. Null if none comes within so many
     * milliseconds.
     */
    public PolledList take(long milliseconds, int records) throws InterruptedException {
        PolledList list = (PolledList) lists.poll(milliseconds, TimeUnit.MILLISECONDS);
        if (list == null) {
            return null;
        }
        room.release(share(list));
        PolledList next = (PolledList) lists.peek();
        while (next != null && list.precedes(next) && list.size() + next.size() <= records && remove(next)) {
            list.append(next);
            next = (PolledList) lists.peek();
        }
        return list;
    }

    /** True while a list of the task waits. */
    public boolean holds(int task) {
        for (Iterator each = lists.iterator(); each.hasNext();) {
            if (((PolledList) each.next()).task() == task) {
                return true;
            }
        }
        return false;
    }

    /** Drops the lists of a task; if it waits for room, it goes on. */
    public void discard(int task) {
        for (Iterator each = lists.iterator(); each.hasNext();) {
            PolledList list = (PolledList) each.next();
            if (list.task() == task) {
                remove(list);
            }
        }
    }

    /** Drops all lists; tasks that wait for room go on. */
    public void clear() {
        for (Iterator each = lists.iterator(); each.hasNext();) {
            remove((PolledList) each.next());
        }
    }

    private boolean remove(PolledList list) {
        boolean removed = lists.remove(list);
        if (removed) {
            room.release(share(list));
        }
        return removed;
    }

    private int share(PolledList list) {
        return Math.min(list.size(), most);
    }
}
