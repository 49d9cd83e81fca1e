package connectors.connect.java;

import org.apache.kafka.connect.errors.ConnectException;

/** The log of a database has lost what follows the recorded offset: a new start does not help. */
public final class LostPosition extends ConnectException {
    public LostPosition(String message) {
        super(message);
    }
}
