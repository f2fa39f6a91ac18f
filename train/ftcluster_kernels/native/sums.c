#include "vectors.h"

#define TOGETHER 8 /* rows */

typedef struct {
    int type;
    const void *rows;
    float *sums; /* for each thread */
    int64_t columns;
} Columns;

INLINE void add_rows(const Columns *a, int64_t row, int64_t end, int thread, int type) {
    float *sums = a->sums + a->columns * thread;
    for (int64_t next; row < end; row = next) {
        next = row + TOGETHER < end ? row + TOGETHER : end;
        REGISTERS(i, some, 0, a->columns, {
            vec sum = load_fp32(sums + i, some);
            for (int64_t j = row; j < next; j++)
                sum = add(sum, load(a->rows, j * a->columns + i, some, type));
            store_fp32(sums + i, some, sum);
        });
    }
}

LOOP_BY_TYPE(add_rows, Columns)

/* `sums`: zeros. */
EXPORT void column_sums(int64_t type, const void *rows, void *sums, int64_t count, int64_t columns, int threads) {
    Columns arguments = {type, rows, sums, columns};
    in_shares(threads, add_rows_loop, &arguments, count);
}
