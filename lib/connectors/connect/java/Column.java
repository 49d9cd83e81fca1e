package connectors.connect.java;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;

/**
 * A column in the layout of an Arrow array: a bitmap of the rows that are not null, if there are nulls, and then the values.
 *
 * What a huge list has needed is given back by clear(): the heap of a connector is small.
 */
abstract class Column {
    static final int FIRST_ROWS = 1 << 11;
    static final int MOST_ROWS = 1 << 15;

    private final BitSet nulls = new BitSet();
    private int rows = 0;

    final int rows() {
        return rows;
    }

    final int nulls() {
        return nulls.cardinality();
    }

    /** How many items or bytes the rows have in all; 0 in a column of numbers. */
    int length() {
        return 0;
    }

    /** Counts a row and returns its number. */
    final int next(boolean isNull) {
        if (isNull) {
            nulls.set(rows);
        }
        return rows++;
    }

    void clear() {
        nulls.clear();
        rows = 0;
    }

    void write(ColumnFile file) throws IOException {
        if (!nulls.isEmpty()) {
            BitSet valid = (BitSet) nulls.clone();
            valid.flip(0, rows);
            byte[] bitmap = Arrays.copyOf(valid.toByteArray(), (rows + 7) / 8);
            file.put(bitmap, bitmap.length);
            file.align();
        }
    }

    /** 32-bit or 64-bit numbers. */
    static final class Numbers extends Column {
        private final int width;
        private long[] values = new long[FIRST_ROWS];

        Numbers(int bits) {
            width = bits / 8;
        }

        void add(Number number) {
            int row = next(number == null);
            if (row == values.length) {
                values = Arrays.copyOf(values, 2 * row);
            }
            values[row] = number == null ? 0L : number.longValue();
        }

        void clear() {
            super.clear();
            values = values.length > MOST_ROWS ? new long[FIRST_ROWS] : values;
        }

        void write(ColumnFile file) throws IOException {
            super.write(file);
            for (int row = 0; row < rows(); row++) {
                file.put(values[row], width);
            }
            file.align();
        }
    }

    /** The lengths of lists, written as offsets; the items are columns of their own. */
    static class Lists extends Column {
        private int[] offsets = new int[FIRST_ROWS];

        /** Adds a list of so many items; -1 for null. */
        final void add(int length) {
            int row = next(length < 0);
            if (row + 1 == offsets.length) {
                offsets = Arrays.copyOf(offsets, 2 * offsets.length);
            }
            offsets[row + 1] = Math.addExact(offsets[row], Math.max(length, 0));
        }

        final int length() {
            return offsets[rows()];
        }

        void clear() {
            super.clear();
            offsets = offsets.length > MOST_ROWS ? new int[FIRST_ROWS] : offsets;
        }

        void write(ColumnFile file) throws IOException {
            super.write(file);
            for (int row = 0; row <= rows(); row++) {
                file.put(offsets[row], 4);
            }
            file.align();
        }
    }

    /** Bytes or text: offsets, and then all cells behind each other. Long cells are not copied. */
    static final class Cells extends Lists {
        private static final int BLOCK = 1 << 16;

        private final List<byte[]> full = new ArrayList<byte[]>();
        private byte[] block = new byte[BLOCK];
        private int used = 0;

        void add(byte[] cell) {
            add(cell == null ? -1 : cell.length);
            if (cell == null) {
                return;
            }
            if (cell.length > BLOCK - used) {
                endBlock();
            }
            if (cell.length > BLOCK) {
                full.add(cell);
            } else {
                System.arraycopy(cell, 0, block, used, cell.length);
                used += cell.length;
            }
        }

        void clear() {
            super.clear();
            full.clear();
            used = 0;
        }

        void write(ColumnFile file) throws IOException {
            super.write(file);
            for (int index = 0; index < full.size(); index++) {
                byte[] bytes = (byte[]) full.get(index);
                file.put(bytes, bytes.length);
            }
            file.put(block, used);
            file.align();
        }

        private void endBlock() {
            if (used > 0) {
                full.add(Arrays.copyOf(block, used));
                used = 0;
            }
        }
    }
}
