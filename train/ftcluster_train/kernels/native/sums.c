#include "vectors.h"

#define TOGETHER 8 /* rows */

typedef struct {
    const bf16 *rows;
    float *sums; /* for each thread */
    int64_t columns;
} Columns;

static void column_sums_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Columns *a = pointer;
    float *sums = a->sums + a->columns * thread;
    for (int64_t next; row < end; row = next) {
        next = row + TOGETHER < end ? row + TOGETHER : end;
        for (int64_t i = 0; i < a->columns; i += 16) {
            __mmask16 some = first(a->columns - i);
            __m512 sum = load_fp32(sums + i, some);
            for (int64_t j = row; j < next; j++)
                sum = _mm512_add_ps(sum, load(a->rows + j * a->columns + i, some));
            store_fp32(sums + i, some, sum);
        }
    }
}

/* `sums`: zeros. */
EXPORT void column_sums(const void *rows, void *sums, int64_t count, int64_t columns, int threads) {
    Columns arguments = {rows, sums, columns};
    in_threads(threads, column_sums_loop, &arguments, count);
}
