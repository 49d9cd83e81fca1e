package connectors.connect.java;

import io.debezium.config.Configuration;
import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Map;
import javax.management.JMException;
import org.apache.kafka.connect.errors.ConnectException;
import org.apache.kafka.connect.errors.RetriableException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The write-ahead log of PostgreSQL and the replication slot, by a connection as Debezium makes it. */
public final class PostgresLog implements SourceLog {
    private static final Logger LOGGER = LoggerFactory.getLogger(PostgresLog.class);
    private static final int DROP_SECONDS = 60;
    private static final String POSITION =
        "SELECT CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) ELSE pg_current_wal_lsn() END - '0/0'::pg_lsn";
    private static final String SLOT =
        "SELECT active, confirmed_flush_lsn - '0/0'::pg_lsn, coalesce(to_jsonb(s) ->> 'wal_status', '') FROM pg_replication_slots s"
            + " WHERE slot_name = ? AND database = current_database()";
    private static final String SCHEMAS = "SELECT json_agg(nspname) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'";
    private static final String PUBLICATION =
        "SELECT json_build_object('all', puballtables, 'whole', pubinsert AND pubupdate AND pubdelete AND pubtruncate, 'schemas', (%s),"
            + " 'silent', (SELECT json_agg(json_build_array(nspname, relname)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
            + " WHERE relkind IN ('r', 'p') AND NOT EXISTS (SELECT 1 FROM pg_publication_tables t"
            + " WHERE t.pubname = p.pubname AND t.schemaname = nspname AND t.tablename = relname)))"
            + " FROM pg_publication p WHERE pubname = ?";
    private static final String PUBLISHED =
        "SELECT json_agg(nspname) FROM pg_publication_namespace JOIN pg_namespace n ON n.oid = pnnspid WHERE pnpubid = p.oid";
    private static final int WITH_SCHEMAS = 15;
    private static final String FACTS =
        "SELECT json_build_object('slot_lag_bytes', p.at - (restart_lsn - '0/0'), 'wal_status', to_jsonb(s) ->> 'wal_status',"
            + " 'bound', current_setting('max_slot_wal_keep_size', true), 'snapshot_total',"
            + " (SELECT CASE WHEN min(reltuples) >= 0 THEN sum(reltuples)::bigint END FROM pg_class c"
            + " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname || '.' || relname = ANY (?))),"
            + " confirmed_flush_lsn - '0/0', p.at, pg_is_in_recovery()"
            + " FROM (" + POSITION + " AS at) p LEFT JOIN pg_replication_slots s ON slot_name = ? AND database = current_database()";
    private static final String MARK = "SELECT pg_logical_emit_message(false, '" + SourcePosition.MARK + "', '') - '0/0'::pg_lsn";
    /** Where more log than that lies behind a slot, a message is written that moves it. */
    private static final long MARK_BYTES = 16L << 20;

    private final PostgresConnectorConfig config;
    private final PostgresConnectorConfig hasty;
    private final boolean dropsSlot;
    private final boolean reads;
    private final boolean flushesItself;
    private final boolean marks;
    /** The newest position that this object has marked, or tried to; the largest number where the database does not let it. */
    private long mark = 0L;

    /**
     * The properties in hasty have short timeouts. A snapshot is taken with a new slot if dropsSlot is true. reads says that the log
     * is read behind an offset, flushesItself that the driver confirms positions that the connector has not committed, marks that
     * look() may write to the log.
     */
    public PostgresLog(
        Configuration properties, Configuration hasty, boolean dropsSlot, boolean reads, boolean flushesItself, boolean marks) {
        this.config = new PostgresConnectorConfig(properties);
        this.hasty = new PostgresConnectorConfig(hasty);
        this.dropsSlot = dropsSlot;
        this.reads = reads;
        this.flushesItself = flushesItself;
        this.marks = marks;
    }

    public String prepare(Map offset, boolean snapshot, String system) {
        PostgresConnection database = new PostgresConnection(config.getJdbcConfig(), "connectors");
        try {
            Connection connection = database.connection();
            connection.setAutoCommit(true);
            String found = system(connection);
            boolean beginsAnew = snapshot && dropsSlot && isUnfinished(offset);
            boolean goesOn = !snapshot && reads;
            if ((beginsAnew || goesOn) && system != null && found != null && !found.equals(system)) {
                throw new LostPosition("the database is another one than the position is of: its system identifier is " + found
                    + ", and was " + system);
            }
            if (beginsAnew) {
                dropSlot(connection);
            } else if (goesOn) {
                check(connection, offset);
            }
            return found == null ? system : found;
        } catch (SQLException error) {
            String state = error.getSQLState();
            String message = "the log of the database cannot be checked: " + error.getMessage();
            if (state == null || state.startsWith("08") || state.startsWith("57P") || state.startsWith("53")) {
                throw new RetriableException(message, error);
            }
            throw new ConnectException(message, error);
        } finally {
            database.close();
        }
    }

    /** True where nothing but an initial snapshot, or a part of one, was read: Debezium refuses a later offset beside a new slot. */
    private static boolean isUnfinished(Map offset) {
        Object snapshot = offset == null ? null : offset.get("snapshot");
        boolean isInitial = snapshot != null && !"INCREMENTAL".equalsIgnoreCase(snapshot.toString());
        return offset == null || isInitial && !"true".equals(String.valueOf(offset.get("snapshot_completed")));
    }

    /** Before the first start of a query: throws where the slot is there, which a snapshot would make anew. */
    public void refuseSlot() throws SQLException {
        if (!dropsSlot) {
            return;
        }
        PostgresConnection database = new PostgresConnection(config.getJdbcConfig(), "connectors");
        try {
            PreparedStatement query = database.connection().prepareStatement(SLOT);
            query.setString(1, config.slotName());
            if (query.executeQuery().next()) {
                throw new ConnectException("the replication slot " + config.slotName() + " exists, and this query has not made it");
            }
        } finally {
            database.close();
        }
    }

    /** Two texts of JSON: the schemas of the database; what its publication has, null if there is none. */
    public String[] publication() throws SQLException {
        PostgresConnection database = new PostgresConnection(config.getJdbcConfig(), "connectors");
        try {
            Connection connection = database.connection();
            ResultSet schemas = connection.createStatement().executeQuery(SCHEMAS);
            schemas.next();
            boolean mayHaveSchemas = connection.getMetaData().getDatabaseMajorVersion() >= WITH_SCHEMAS;
            String sql = String.format(PUBLICATION, new Object[] {mayHaveSchemas ? PUBLISHED : "NULL::json"});
            PreparedStatement query = connection.prepareStatement(sql);
            query.setString(1, config.publicationName());
            ResultSet row = query.executeQuery();
            return new String[] {schemas.getString(1), row.next() ? row.getString(1) : "null"};
        } finally {
            database.close();
        }
    }

    /** The position at which the log ends now. */
    public long end() throws SQLException {
        PostgresConnection database = new PostgresConnection(config.getJdbcConfig(), "connectors");
        try {
            return number(database.connection(), POSITION);
        } finally {
            database.close();
        }
    }

    /**
     * Looks at the slot, and moves it if need be. Returns JSON of what is known of it and of the tables of a snapshot. Answers soon, or
     * throws.
     *
     * The slot of tables that do not change stands still while others are written to, as Debezium sees nothing of these. Where much
     * log lies behind it, this writes a message into the log, which comes as a record without a row.
     */
    public String look() throws SQLException, JMException {
        PostgresConnection database = new PostgresConnection(hasty.getJdbcConfig(), "connectors");
        try {
            Connection connection = database.connection();
            connection.setAutoCommit(true);
            PreparedStatement query = connection.prepareStatement(FACTS);
            query.setArray(1, connection.createArrayOf("text", new SnapshotMetrics().tables()));
            query.setString(2, config.slotName());
            ResultSet row = query.executeQuery();
            row.next();
            String facts = row.getString(1);
            long confirmed = row.getLong(2);
            boolean hasSlot = !row.wasNull();
            long end = row.getLong(3);
            // A message that moves nothing is followed by another: a start behind a blocking snapshot passes over one.
            if (marks && hasSlot && end - Math.max(confirmed, mark) > MARK_BYTES && !row.getBoolean(4)) {
                mark(connection, end);
            }
            return facts;
        } finally {
            database.close();
        }
    }

    /** The message belongs to no transaction: it lies behind all that was committed before, so a start may go on from there. */
    private void mark(Connection connection, long end) {
        try {
            mark = number(connection, MARK);
        } catch (SQLException error) {
            String state = error.getSQLState();
            mark = state != null && state.startsWith("42") ? Long.MAX_VALUE : end;
            LOGGER.warn("The slot {} stands still while its tables do not change: {}", config.slotName(), error.getMessage());
        }
    }

    private void check(Connection connection, Map offset) throws SQLException {
        Object newest = offset.get("lsn");
        Object committed = offset.get("lsn_commit");
        String recorded = "the recorded position is " + text(newest) + (committed == null ? "" : ", behind the commit " + text(committed));
        PreparedStatement query = connection.prepareStatement(SLOT);
        try {
            query.setString(1, config.slotName());
            ResultSet slot = query.executeQuery();
            if (!slot.next()) {
                throw new LostPosition("the replication slot " + config.slotName() + " does not exist any more; " + recorded);
            }
            if (slot.getString(3).equals("lost") || slot.getObject(2) == null) {
                throw new LostPosition("the replication slot " + config.slotName() + " has lost its log (wal_status is lost),"
                    + " as it does where it is behind by more than max_slot_wal_keep_size; " + recorded);
            }
            long confirmed = slot.getBigDecimal(2).longValue();
            // Before the first commit of a log there is no position that the slot must not have passed.
            Object known = committed != null ? committed : offset.containsKey("snapshot") ? newest : null;
            if (known != null && confirmed > ((Number) known).longValue() && !flushesItself) {
                throw new LostPosition("the replication slot " + config.slotName() + " is at " + text(Long.valueOf(confirmed)) + ", and "
                    + recorded + ": another reader has used it, or it was moved or made anew, and the changes between are not sent again");
            }
        } finally {
            query.close();
        }
        boolean isPrimary = number(connection, "SELECT pg_is_in_recovery()::int") == 0L;
        if (!isPrimary || newest == null) {
            return;
        }
        long end = number(connection, POSITION);
        if (end < ((Number) newest).longValue()) {
            throw new LostPosition("the log of the database ends at " + text(Long.valueOf(end)) + ", and " + recorded
                + ": the database was set back to an earlier state");
        }
    }

    /** Debezium makes a new slot then, whose snapshot and log meet without a gap; with one that exists they do not. */
    private void dropSlot(Connection connection) throws SQLException {
        for (int second = 0; ; second++) {
            PreparedStatement query = connection.prepareStatement(SLOT);
            try {
                query.setString(1, config.slotName());
                ResultSet slot = query.executeQuery();
                if (!slot.next()) {
                    return;
                }
                if (!slot.getBoolean(1)) {
                    break;
                }
            } finally {
                query.close();
            }
            if (second == DROP_SECONDS) {
                throw new ConnectException("the replication slot " + config.slotName() + " is active: another reader uses it. Give each its own");
            }
            pause();
        }
        LOGGER.warn("The replication slot {} is made anew, as the snapshot is taken from its beginning", config.slotName());
        PreparedStatement drop = connection.prepareStatement("SELECT pg_drop_replication_slot(?)");
        try {
            drop.setString(1, config.slotName());
            drop.execute();
        } finally {
            drop.close();
        }
    }

    /** The identity of the database cluster; null where nobody tells it. */
    private static String system(Connection connection) throws SQLException {
        Statement query = connection.createStatement();
        try {
            ResultSet row = query.executeQuery("SELECT system_identifier::text FROM pg_control_system()");
            row.next();
            return row.getString(1);
        } catch (SQLException error) {
            String state = error.getSQLState();
            if (state != null && (state.startsWith("42") || state.startsWith("0A"))) {
                return null; // the user may not, or a service has no such function
            }
            throw error;
        } finally {
            query.close();
        }
    }

    private static long number(Connection connection, String sql) throws SQLException {
        Statement query = connection.createStatement();
        try {
            ResultSet row = query.executeQuery(sql);
            row.next();
            return row.getBigDecimal(1).longValue();
        } finally {
            query.close();
        }
    }

    private static String text(Object position) {
        if (position == null) {
            return "unknown";
        }
        long number = ((Number) position).longValue();
        return String.format("%X/%X", new Object[] {Long.valueOf(number >>> 32), Long.valueOf(number & 0xFFFFFFFFL)});
    }

    private static void pause() {
        try {
            Thread.sleep(1000L);
        } catch (InterruptedException interruption) {
            Thread.currentThread().interrupt();
            throw new ConnectException("interrupted while a replication slot was waited for", interruption);
        }
    }
}
