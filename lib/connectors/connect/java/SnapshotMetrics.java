package connectors.connect.java;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import javax.management.openmbean.CompositeData;
import javax.management.openmbean.TabularData;

/** What Debezium tells of the snapshots in this JVM. It counts the rows of a table about every ten seconds, and at its end. */
public final class SnapshotMetrics {
    private final MBeanServer server = ManagementFactory.getPlatformMBeanServer();

    /** The rows that were read of all tables; -1 where there was no snapshot. */
    public long rows() throws JMException {
        long rows = -1L;
        for (Iterator counts = all("RowsScanned").iterator(); counts.hasNext();) {
            for (Iterator tables = ((TabularData) counts.next()).values().iterator(); tables.hasNext();) {
                rows = Math.max(rows, 0L) + ((Number) ((CompositeData) tables.next()).get("value")).longValue();
            }
        }
        return rows;
    }

    public boolean isRunning() throws JMException {
        return all("SnapshotRunning").contains(Boolean.TRUE);
    }

    /** The names of the tables that a snapshot reads, such as "public.orders". */
    public String[] tables() throws JMException {
        List<String> tables = new ArrayList<String>();
        for (Iterator names = all("CapturedTables").iterator(); names.hasNext();) {
            tables.addAll(Arrays.asList((String[]) names.next()));
        }
        return (String[]) tables.toArray(new String[0]);
    }

    /** The values of an attribute, of each task. */
    private List all(String attribute) throws JMException {
        List<Object> values = new ArrayList<Object>();
        ObjectName pattern = new ObjectName("debezium.*:type=connector-metrics,context=snapshot,*");
        for (Iterator each = server.queryNames(pattern, null).iterator(); each.hasNext();) {
            values.add(server.getAttribute((ObjectName) each.next(), attribute));
        }
        return values;
    }
}
