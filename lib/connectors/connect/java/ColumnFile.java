package connectors.connect.java;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;

/** A file that is written anew from its beginning each time, in the byte order of Arrow. */
final class ColumnFile {
    private static final int BUFFER = 1 << 16;
    private static final long LONGEST = 32L << 20;

    private final FileChannel channel;
    private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER).order(ByteOrder.LITTLE_ENDIAN);
    private long written = 0L;

    ColumnFile(String path) throws IOException {
        channel = new RandomAccessFile(path, "rw").getChannel();
    }

    void begin() throws IOException {
        if (channel.size() > LONGEST) {
            channel.truncate(0L);
        }
        channel.position(0L);
        buffer.clear();
        written = 0L;
    }

    /** Writes the lower bytes of a number: 4 or 8 of them. */
    void put(long number, int width) throws IOException {
        if (buffer.remaining() < width) {
            flush();
        }
        if (width == 4) {
            buffer.putInt((int) number);
        } else {
            buffer.putLong(number);
        }
    }

    void put(byte[] bytes, int length) throws IOException {
        int at = 0;
        while (at < length) {
            if (!buffer.hasRemaining()) {
                flush();
            }
            int part = Math.min(length - at, buffer.remaining());
            buffer.put(bytes, at, part);
            at += part;
        }
    }

    /** Goes to the next multiple of 8 bytes, where Arrow's buffers begin. */
    void align() throws IOException {
        while (buffer.position() % 8 != 0) {
            buffer.put((byte) 0);
        }
    }

    /** Ends the file and returns its length. */
    long end() throws IOException {
        flush();
        return written;
    }

    void close() throws IOException {
        channel.close();
    }

    private void flush() throws IOException {
        buffer.flip();
        written += buffer.remaining();
        while (buffer.hasRemaining()) {
            channel.write(buffer);
        }
        buffer.clear();
    }
}
