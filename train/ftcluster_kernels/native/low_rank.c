#include "vectors.h"

#include "fma.h"

/* Multiplications by matrices with few columns: the factors of low-rank adapters. ../low_rank_products.py describes
 * them. Libraries for matrix multiplications pack their factors, which takes longer than these multiplications.
 *
 * A block of ROWS x PANEL values is converted to fp32 in L1. Both products then read it from there. On CPUs whose
 * AVX512-BF16 is faster than fp32, the factors stay in bf16 and consist of words with two elements (`in_pairs`), see fma.h:
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
#define MOST_RANK 32 /* ../low_rank_products.py has the same maximum */

/* A layer with an adapter. `rank` is a multiple of 16, the size of a group. */
typedef struct {
    int type; /* of `input`, `output`, `grad` and `grad_input` */
    int64_t inputs, outputs, rank;
    const void *input;       /* (rows, inputs) */
    void *output;            /* (rows, outputs) */
    float *low;              /* (rows, rank) */
    const float *down, *up;  /* factors; the loops below describe their layouts */
    const void *grad;        /* (rows, outputs) */
    void *grad_input;        /* (rows, inputs), or NULL */
    float *grad_low;         /* (rows, rank) */
    float *sums;             /* for each thread the sums for `up`, (groups, outputs, 16), and for `down`, (groups, inputs, 16) */
    float scale;
    int in_pairs;            /* 1 if the factors are in bf16; `inputs` and `outputs` are then even */
} Layer;

/* The number of cache lines in a row of a panel. */
#define LINES(type) (PANEL * ((type) == FP32 ? 4 : 2) / 64)

/* The values of the next block, which the products of this block prefetch. A prefetch beyond the end does nothing. */
typedef struct {
    const char *rows;
    int64_t row_bytes;
} Next;

INLINE void prefetch(Next next, int64_t row, int64_t line) {
    _mm_prefetch(next.rows + row * next.row_bytes + line * 64, _MM_HINT_T0);
}

/* Add block[:count] @ right to `sums`, whose rows are `stride` elements apart. Rows of the block are `block_stride` words
 * apart. */
INLINE void add_rows_product(const float *block, int64_t block_stride, const float *right, int64_t depth_words,
                             float *sums, int64_t stride, Next next, int type, int in_pairs, const int count) {
    const uint64_t interval = PANEL / (in_pairs ? 2 : 1) / (ROWS_AT_ONCE * LINES(type));
    vec sum[ROWS_AT_ONCE];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        sum[i] = load_fp32(sums + i * stride, 0xffff);
    for (uint64_t j = 0; j < (uint64_t)depth_words; j++) {
        vec factor = load_fp32(right + 16 * j, 0xffff);
        if (j % interval == 0)
            prefetch(next, j / interval % ROWS_AT_ONCE, j / interval / ROWS_AT_ONCE);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            sum[i] = add_product(sum[i], broadcast(block[i * block_stride + j]), factor, in_pairs ? BF16 : FP32);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        store_fp32(sums + i * stride, 0xffff, sum[i]);
}

/* Add block[:, :count].T @ left to `sums`; the block and `left` have `depth_words` rows of words, and rows of `left` are
 * `stride` words apart. */
INLINE void add_columns_product(const float *block, const float *left, int64_t stride, int64_t depth_words,
                                float *sums, Next next, int64_t line, int type, int in_pairs, const int count) {
    vec sum[COLUMNS_AT_ONCE];
#pragma GCC unroll 16
    for (int j = 0; j < count; j++)
        sum[j] = load_fp32(sums + 16 * j, 0xffff);
    for (int64_t i = 0; i < depth_words; i++) {
        vec factor = load_fp32(left + i * stride, 0xffff);
        if (line < LINES(type))
            for (int k = 0; k <= in_pairs; k++)
                prefetch(next, (in_pairs + 1) * i + k, line);
#pragma GCC unroll 16
        for (int j = 0; j < count; j++)
            sum[j] = add_product(sum[j], broadcast(block[i * STRIDE + j]), factor, in_pairs ? BF16 : FP32);
    }
#pragma GCC unroll 16
    for (int j = 0; j < count; j++)
        store_fp32(sums + 16 * j, 0xffff, sum[j]);
}

INLINE const void *row_of(const void *matrix, int64_t row, int64_t columns, int type) {
    return (const char *)matrix + row * columns * size_of(type);
}

/* Copy a block of `rows` x `width` values, as fp32 or as words with the elements of two rows. */
INLINE void copy_block(const void *values, int64_t columns, int64_t rows, int64_t width, float *block, int type,
                       int in_pairs) {
    const bf16 no_row[PANEL] = {0};
    if (in_pairs)
        for (int64_t i = 0; i < rows; i += 2) {
            const bf16 *row = row_of(values, i, columns, type), *next_row = i + 1 < rows ? row + columns : no_row;
            interleave_rows(row, next_row, width, (word *)block + i / 2 * STRIDE);
        }
    else
        for (int64_t i = 0; i < rows; i++)
            REGISTERS(j, active, 0, width, {
                store_fp32(block + i * STRIDE + j, active, load(values, i * columns + j, active, type));
            });
}

/* Round rows of fp32 to words with the elements of two rows. */
INLINE void pair_rows(const float *left, int64_t rows, int64_t rank, word *words) {
#ifdef WITH_AMX
    for (int64_t i = 0; i < rows; i += 2)
        for (int64_t j = 0; j < rank; j += 16) {
            bf16 pair[2][16];
            store_element(pair[0], 0, 0xffff, load_fp32(left + i * rank + j, 0xffff), BF16);
            store_element(pair[1], 0, 0xffff, i + 1 < rows ? load_fp32(left + (i + 1) * rank + j, 0xffff) : zeros(),
                          BF16);
            interleave_rows(pair[0], pair[1], 16, words + i / 2 * rank + j);
        }
#endif
}

/* Multiply up to ROWS rows of `values` by matrices with `rank` columns. If `right` is not NULL, `of_rows` becomes
 * scale * values @ right; if `left` is not NULL, values.T @ left is added to `of_columns`. `of_columns` is (groups, columns,
 * 16), and `right` consists of words in the same order, which contain one or two columns. */
INLINE void multiply_rows(const void *values, int64_t rows, int64_t columns, int64_t rank, const float *right,
                          float scale, float *of_rows, const float *left, float *of_columns, int type, int in_pairs) {
    const int64_t in_one = in_pairs + 1;
    float block[ROWS * STRIDE] __attribute__((aligned(64)));
    float pairs[ROWS / 2 * MOST_RANK] __attribute__((aligned(64)));
    for (int64_t i = 0; right && i < rows * rank; i += 16)
        store_fp32(of_rows + i, 0xffff, zeros());
    if (left && in_pairs) {
        pair_rows(left, rows, rank, (word *)pairs);
        left = pairs;
    }
    for (int64_t column = 0; column < columns; column += PANEL) {
        const int64_t width = min64(PANEL, columns - column);
        const char *panel = (const char *)values + column * size_of(type);
        const int64_t next_place = column + PANEL < columns ? column + PANEL : ROWS * columns;
        const Next next = {(const char *)values + next_place * size_of(type), columns * size_of(type)};
        if (left || !in_pairs)
            copy_block(panel, columns, rows, width, block, type, in_pairs);
        const float *right_rows = in_pairs ? (const float *)panel : block;
        const int64_t row_stride = in_pairs ? columns / 2 : STRIDE;
        for (int64_t group = 0; group * 16 < rank; group++) {
            const float *right_panel = right + (group * columns + column) / in_one * 16;
            float *column_sums = of_columns + (group * columns + column) * 16;
            for (int64_t i = 0; right && i < rows; i += ROWS_AT_ONCE) {
                const Next next_rows = {next.rows + i * next.row_bytes, next.row_bytes};
                float *row_sums = of_rows + i * rank + group * 16;
                if (i + ROWS_AT_ONCE <= rows)
                    add_rows_product(right_rows + i * row_stride, row_stride, right_panel, width / in_one, row_sums,
                                     rank, next_rows, type, in_pairs, ROWS_AT_ONCE);
                else
                    for (int64_t k = 0; i + k < rows; k++)
                        add_rows_product(right_rows + (i + k) * row_stride, row_stride, right_panel, width / in_one,
                                         row_sums + k * rank, rank, next_rows, type, in_pairs, 1);
            }
            const int64_t first_line = right ? LINES(type) : 0; /* the loop above has prefetched all lines */
            const int64_t depth_words = ceil_div(rows, in_one);
            for (int64_t j = 0; left && j < width; j += COLUMNS_AT_ONCE) {
                const int64_t line = first_line + j / COLUMNS_AT_ONCE;
                if (j + COLUMNS_AT_ONCE <= width)
                    add_columns_product(block + j, left + group * 16, rank, depth_words, column_sums + j * 16, next,
                                        line, type, in_pairs, COLUMNS_AT_ONCE);
                else
                    for (int64_t k = j; k < width; k++)
                        add_columns_product(block + k, left + group * 16, rank, depth_words, column_sums + k * 16,
                                            next, LINES(type), type, in_pairs, 1);
            }
        }
    }
    for (int64_t i = 0; right && i < rows * rank; i += 16)
        store_fp32(of_rows + i, 0xffff, mul(load_fp32(of_rows + i, 0xffff), broadcast(scale)));
}

#define OUTPUT_ROWS 4

/* Add left @ right to `count` rows of the output, for `registers` registers of 16 columns. Rows of `output` and `right`
 * are `columns` elements or words apart, and rows of `left` `depth_words` words. */
INLINE void add_to_block(void *output, int64_t offset, int64_t columns, const float *left, const float *right,
                         int64_t depth_words, lanes active, int type, int in_pairs, const int count,
                         const int registers) {
    vec sum[OUTPUT_ROWS][2];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            sum[i][j] = load(output, offset + i * columns + 16 * j, active, type);
    for (int64_t k = 0; k < depth_words; k++) {
        vec factor[2];
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            factor[j] = load_fp32(right + k * columns + 16 * j, active);
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) {
            vec value = broadcast(left[i * depth_words + k]);
#pragma GCC unroll 2
            for (int j = 0; j < registers; j++)
                sum[i][j] = add_product(sum[i][j], value, factor[j], in_pairs ? BF16 : FP32);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int j = 0; j < registers; j++)
            if (in_pairs)
                store_element(output, offset + i * columns + 16 * j, active, sum[i][j], BF16);
            else
                store(output, offset + i * columns + 16 * j, active, sum[i][j], type);
}

/* Add left @ right to up to ROWS rows of the output; `right` has `columns` words for each row or pair of rows, and a panel
 * of it stays in L1. */
INLINE void add_to_rows(void *output, int64_t rows, int64_t columns, const float *left, const float *right,
                        int64_t rank, int type, int in_pairs) {
    const int64_t depth_words = rank / (in_pairs + 1);
    float rounded[ROWS / 2 * MOST_RANK] __attribute__((aligned(64)));
    if (in_pairs) {
        for (int64_t i = 0; i < rows * rank; i += 16)
            store_element(rounded, i, 0xffff, load_fp32(left + i, 0xffff), BF16);
        left = rounded;
    }
    for (int64_t first = 0; first < columns; first += 2 * PANEL) {
        const int64_t end = min64(columns, first + 2 * PANEL);
        int64_t row = 0;
        for (; row + OUTPUT_ROWS <= rows; row += OUTPUT_ROWS) {
            const float *left_rows = left + row * depth_words;
            int64_t column = first;
            for (; column + 32 <= end; column += 32)
                add_to_block(output, row * columns + column, columns, left_rows, right + column, depth_words, 0xffff,
                             type, in_pairs, OUTPUT_ROWS, 2);
            for (; column < end; column += 16)
                add_to_block(output, row * columns + column, columns, left_rows, right + column, depth_words,
                             first_lanes(end - column), type, in_pairs, OUTPUT_ROWS, 1);
        }
        for (; row < rows; row++)
            REGISTERS(column, active, first, end, {
                add_to_block(output, row * columns + column, columns, left + row * depth_words, right + column,
                             depth_words, active, type, in_pairs, 1, 1);
            });
    }
}

/* Define name_loop, a Loop that calls `name` with a constant type and a constant `in_pairs`. */
#ifdef WITH_AMX
#define CALL_IN_PAIRS(name, arguments)                         \
    if (arguments->in_pairs) {                                 \
        name(arguments, begin, end, thread, BF16, 1);          \
        return;                                                \
    }
#else
#define CALL_IN_PAIRS(name, arguments)
#endif
#define LAYER_LOOP(name)                                                                   \
    static void name##_loop(const void *pointer, int64_t begin, int64_t end, int thread) { \
        const Layer *arguments = pointer;                                                  \
        CALL_IN_PAIRS(name, arguments)                                                     \
        if (arguments->type == FP32)                                                       \
            name(arguments, begin, end, thread, FP32, 0);                                  \
        else                                                                               \
            name(arguments, begin, end, thread, BF16, 0);                                  \
    }

INLINE void low_rank_forward(const Layer *args, int64_t begin, int64_t end, int thread, int type, int in_pairs) {
    const int64_t rank = args->rank;
    for (int64_t row = begin; row < end; row += ROWS) {
        const int64_t rows = min64(ROWS, end - row);
        float *low = args->low + row * rank;
        multiply_rows(row_of(args->input, row, args->inputs, type), rows, args->inputs, rank, args->down, args->scale,
                      low, 0, 0, type, in_pairs);
        add_to_rows((void *)row_of(args->output, row, args->outputs, type), rows, args->outputs, low, args->up, rank,
                    type, in_pairs);
    }
}
LAYER_LOOP(low_rank_forward)

/* low = scale * input @ down and output += low @ up, with `down` as (groups, inputs, 16) and `up` as (rank, outputs). */
EXPORT void low_rank_output(int64_t type, int64_t in_pairs, void *output, const void *input, const void *down, const void *up, void *low,
                            int64_t rows, int64_t inputs, int64_t outputs, int64_t rank, float scale, int threads) {
    Layer arguments = {.type = type, .in_pairs = in_pairs, .output = output, .input = input, .down = down, .up = up, .low = low,
                       .inputs = inputs, .outputs = outputs, .rank = rank, .scale = scale};
    in_threads(threads, low_rank_forward_loop, &arguments, rows);
}

INLINE void low_rank_backward(const Layer *args, int64_t begin, int64_t end, int thread, int type, int in_pairs) {
    const int64_t rank = args->rank, inputs = args->inputs, outputs = args->outputs;
    float *up_sums = args->sums + thread * rank * (inputs + outputs), *down_sums = up_sums + rank * outputs;
    for (int64_t row = begin; row < end; row += ROWS) {
        const int64_t rows = min64(ROWS, end - row);
        float *grad_low = args->grad_low + row * rank;
        multiply_rows(row_of(args->grad, row, outputs, type), rows, outputs, rank, args->up, args->scale, grad_low,
                      args->low + row * rank, up_sums, type, in_pairs);
        multiply_rows(row_of(args->input, row, inputs, type), rows, inputs, rank, 0, 0, 0, grad_low, down_sums, type,
                      in_pairs);
        if (args->grad_input)
            add_to_rows((void *)row_of(args->grad_input, row, inputs, type), rows, inputs, grad_low, args->down, rank,
                        type, in_pairs);
    }
}
LAYER_LOOP(low_rank_backward)

/* grad_low = scale * grad @ up and grad_input += grad_low @ down, with `up` as (groups, outputs, 16) and `down` as (rank,
 * inputs); grad.T @ low and input.T @ grad_low are added to the thread's sums, which must be zeros. */
EXPORT void low_rank_gradients(int64_t type, int64_t in_pairs, const void *grad, const void *input, const void *low, const void *down,
                               const void *up, void *grad_low, void *grad_input, void *sums, int64_t rows,
                               int64_t inputs, int64_t outputs, int64_t rank, float scale, int threads) {
    Layer arguments = {.type = type, .in_pairs = in_pairs, .grad = grad, .input = input, .low = (float *)low, .down = down, .up = up,
                       .grad_low = grad_low, .grad_input = grad_input, .sums = sums, .inputs = inputs,
                       .outputs = outputs, .rank = rank, .scale = scale};
    in_shares(threads, low_rank_backward_loop, &arguments, rows);
}
