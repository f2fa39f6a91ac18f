#include "vectors.h"

/* Multiplications by matrices with few columns: the factors of low-rank adapters. ../low_rank_products.py describes
 * them. Libraries for matrix multiplications pack their factors, which takes longer than these multiplications.
 *
 * A block of ROWS x PANEL values is converted to fp32 in L1. Both products then read it from there:
 *
 *                  panel of `right`, 16 columns      `of_columns`, 16 columns, in L2
 *                  +------+                          +------+
 *                  | j    |   one register           | j    |   COLUMNS_AT_ONCE rows stay in registers
 *                  +------+                          +------+
 *     +---------+  +------+                          +------+
 *     | i   j   |  | i    |   ROWS_AT_ONCE rows      | i    |   `left`: one register
 *     +---------+  +------+   of `of_rows` stay      +------+
 *       values                in registers
 */
#define ROWS 32
#define PANEL 128
#define STRIDE (PANEL + 16) /* of the rows of a block; with a power of two, rows would compete for the same lines of L1 */
#define ROWS_AT_ONCE 8
#define COLUMNS_AT_ONCE 16

typedef struct {
    int type; /* of `values` and `output` */
    const void *values;
    int64_t rows, columns, groups; /* groups: number of 16 columns of the matrices with few columns */
    const float *right;            /* (groups, columns, 16), or NULL */
    const float *left;             /* (rows, groups, 16), or NULL */
    float *of_rows;                /* (rows, groups, 16): scale * values @ right */
    float *of_columns;             /* for each thread (groups, columns, 16): values.T @ left is added */
    void *output;                  /* (rows, columns) */
    float scale;
} LowRank;

/* Add block[:count] @ right to `sums`, whose rows are `stride` elements apart. */
INLINE void add_rows_product(const float *block, const float *right, int64_t depth, float *sums, int64_t stride,
                             const int count) {
    vec sum[ROWS_AT_ONCE];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        sum[i] = load_fp32(sums + i * stride, 0xffff);
    for (int64_t j = 0; j < depth; j++) {
        vec factor = load_fp32(right + 16 * j, 0xffff);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            sum[i] = mul_add(broadcast(block[i * STRIDE + j]), factor, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        store_fp32(sums + i * stride, 0xffff, sum[i]);
}

/* Add block[:, :count].T @ left to `sums`, of `rows` rows; rows of `left` are `stride` elements apart. */
INLINE void add_columns_product(const float *block, const float *left, int64_t stride, int64_t rows, float *sums,
                                const int count) {
    vec sum[COLUMNS_AT_ONCE];
#pragma GCC unroll 16
    for (int j = 0; j < count; j++)
        sum[j] = load_fp32(sums + 16 * j, 0xffff);
    for (int64_t i = 0; i < rows; i++) {
        vec factor = load_fp32(left + i * stride, 0xffff);
#pragma GCC unroll 16
        for (int j = 0; j < count; j++)
            sum[j] = mul_add(broadcast(block[i * STRIDE + j]), factor, sum[j]);
    }
#pragma GCC unroll 16
    for (int j = 0; j < count; j++)
        store_fp32(sums + 16 * j, 0xffff, sum[j]);
}

INLINE void low_rank(const LowRank *args, int64_t begin, int64_t end, int thread, int type) {
    const int64_t groups = args->groups, columns = args->columns, stride = 16 * groups;
    float block[ROWS * STRIDE] __attribute__((aligned(64)));
    for (int64_t row = begin; row < end; row += ROWS) {
        const int64_t rows = min64(ROWS, end - row);
        float *of_rows = args->of_rows + row * stride;
        for (int64_t i = 0; args->right && i < rows * stride; i += 16)
            store_fp32(of_rows + i, 0xffff, zeros());
        for (int64_t column = 0; column < columns; column += PANEL) {
            const int64_t width = min64(PANEL, columns - column);
            for (int64_t i = 0; i < rows; i++)
                REGISTERS(j, active, 0, width, {
                    store_fp32(block + i * STRIDE + j, active,
                               load(args->values, (row + i) * columns + column + j, active, type));
                });
            for (int64_t group = 0; group < groups; group++) {
                const float *right = args->right + (group * columns + column) * 16;
                int64_t i = 0, j = 0;
                for (; args->right && i + ROWS_AT_ONCE <= rows; i += ROWS_AT_ONCE)
                    add_rows_product(block + i * STRIDE, right, width, of_rows + i * stride + group * 16, stride,
                                     ROWS_AT_ONCE);
                for (; args->right && i < rows; i++)
                    add_rows_product(block + i * STRIDE, right, width, of_rows + i * stride + group * 16, stride, 1);
                const float *left = args->left + row * stride + group * 16;
                float *sums = args->of_columns + ((thread * groups + group) * columns + column) * 16;
                for (; args->left && j + COLUMNS_AT_ONCE <= width; j += COLUMNS_AT_ONCE)
                    add_columns_product(block + j, left, stride, rows, sums + j * 16, COLUMNS_AT_ONCE);
                for (; args->left && j < width; j++)
                    add_columns_product(block + j, left, stride, rows, sums + j * 16, 1);
            }
        }
        for (int64_t i = 0; args->right && i < rows * stride; i += 16)
            store_fp32(of_rows + i, 0xffff, mul(load_fp32(of_rows + i, 0xffff), broadcast(args->scale)));
    }
}
LOOP_BY_TYPE(low_rank, LowRank)

EXPORT void low_rank_products(int64_t type, const void *values, int64_t rows, int64_t columns, int64_t groups,
                              const void *right, void *of_rows, const void *left, void *of_columns, float scale,
                              int threads) {
    LowRank arguments = {.type = type, .values = values, .rows = rows, .columns = columns, .groups = groups,
                         .right = right, .left = left, .of_rows = of_rows, .of_columns = of_columns, .scale = scale};
    in_shares(threads, low_rank_loop, &arguments, rows);
}

#define OUTPUT_ROWS 4

/* Add left @ right to `count` rows of the output, for the registers of 16 columns from `column` on. */
INLINE void add_to_rows(const LowRank *args, int64_t row, int64_t column, lanes active, int type, const int count,
                        const int registers) {
    const int64_t columns = args->columns, depth = 16 * args->groups;
    vec sum[OUTPUT_ROWS][2];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            sum[i][j] = load(args->output, (row + i) * columns + column + 16 * j, active, type);
    for (int64_t k = 0; k < depth; k++) {
        vec factor[2];
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            factor[j] = load_fp32(args->right + k * columns + column + 16 * j, active);
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) {
            vec value = broadcast(args->left[(row + i) * depth + k]);
#pragma GCC unroll 2
            for (int j = 0; j < registers; j++)
                sum[i][j] = mul_add(value, factor[j], sum[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            store(args->output, (row + i) * columns + column + 16 * j, active, sum[i][j], type);
}

/* A panel of `right` stays in L1 while it is multiplied by ROWS rows. */
INLINE void add_low_rank_rows(const LowRank *args, int64_t begin, int64_t end, int thread, int type) {
    for (int64_t first_row = begin; first_row < end; first_row += ROWS)
        for (int64_t first = 0; first < args->columns; first += 2 * PANEL) {
            const int64_t last_row = min64(end, first_row + ROWS), last = min64(args->columns, first + 2 * PANEL);
            int64_t row = first_row;
            for (; row + OUTPUT_ROWS <= last_row; row += OUTPUT_ROWS) {
                int64_t column = first;
                for (; column + 32 <= last; column += 32)
                    add_to_rows(args, row, column, 0xffff, type, OUTPUT_ROWS, 2);
                for (; column < last; column += 16)
                    add_to_rows(args, row, column, first_lanes(last - column), type, OUTPUT_ROWS, 1);
            }
            for (; row < last_row; row++)
                REGISTERS(column, active, first, last, { add_to_rows(args, row, column, active, type, 1, 1); });
        }
}
LOOP_BY_TYPE(add_low_rank_rows, LowRank)

/* output += left @ right, where `right` is (16 * groups, columns). */
EXPORT void add_low_rank(int64_t type, void *output, const void *left, const void *right, int64_t rows, int64_t columns,
                         int64_t groups, int threads) {
    LowRank arguments = {.type = type, .output = output, .rows = rows, .columns = columns, .groups = groups,
                         .right = right, .left = left};
    in_threads(threads, add_low_rank_rows_loop, &arguments, rows);
}
