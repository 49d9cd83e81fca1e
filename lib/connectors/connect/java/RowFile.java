package connectors.connect.java;

import java.io.BufferedInputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/** Columns of rows that lie behind each other in a file: each is read by a stream of its own, so all go on row by row. */
final class RowFile implements Closeable {
    private static final int BUFFER = 1 << 14;

    private final String path;
    private final Iterator sizes;
    private final List<DataInputStream> streams = new ArrayList<DataInputStream>();
    private long start = 0L;

    /** Sizes are those of the parts of the file: one for a column of numbers, two for a column of cells. */
    RowFile(String path, List sizes) {
        this.path = path;
        this.sizes = sizes.iterator();
    }

    /** The next column, of 64-bit numbers. */
    DataInputStream numbers() throws IOException {
        FileInputStream file = new FileInputStream(path);
        DataInputStream stream = new DataInputStream(new BufferedInputStream(file, BUFFER));
        streams.add(stream);
        file.getChannel().position(start);
        start += ((Number) sizes.next()).longValue();
        return stream;
    }

    /** The next column, of bytes or text. */
    Cells cells() throws IOException {
        return new Cells(numbers(), numbers());
    }

    public void close() throws IOException {
        for (int index = 0; index < streams.size(); index++) {
            ((DataInputStream) streams.get(index)).close();
        }
    }

    /** The lengths of cells, -1 for null, and the cells behind each other. */
    static final class Cells {
        private final DataInputStream lengths;
        private final DataInputStream data;

        private Cells(DataInputStream lengths, DataInputStream data) {
            this.lengths = lengths;
            this.data = data;
        }

        byte[] next() throws IOException {
            long length = lengths.readLong();
            return length < 0L ? null : data.readNBytes((int) length);
        }
    }
}
