#include "vectors.h"

#define ROWS_AT_ONCE 8 /* rows that are added before the sums are stored */

typedef struct {
    int type;
    const void *rows;
    float *sums; /* for each thread, a sum for each column */
    int64_t columns;
} ColumnSums;

INLINE void add_rows(const ColumnSums *args, int64_t row, int64_t end, int thread, int type) {
    float *sums = args->sums + args->columns * thread;
    for (int64_t next_row; row < end; row = next_row) {
        next_row = row + ROWS_AT_ONCE < end ? row + ROWS_AT_ONCE : end;
        REGISTERS(i, active, 0, args->columns, {
            vec sum = load_fp32(sums + i, active);
            for (int64_t j = row; j < next_row; j++)
                sum = add(sum, load(args->rows, j * args->columns + i, active, type));
            store_fp32(sums + i, active, sum);
        });
    }
}

LOOP_BY_TYPE(add_rows, ColumnSums)

/* `sums` must be zeros; each thread adds its rows to its part of `sums`. */
EXPORT void column_sums(int64_t type, const void *rows, void *sums, int64_t count, int64_t columns, int threads) {
    ColumnSums arguments = {type, rows, sums, columns};
    in_shares(threads, add_rows_loop, &arguments, count);
}
