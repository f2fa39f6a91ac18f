#include "vectors.h"

#include "fma.h"

/* Multiplication of large matrices: C = A B + bias. A panel of A stays in L2, together with the part of a sliver of
 * B by which the rows of the panel are multiplied. Each free thread takes the next piece of work. The value of an element of
 * C does not depend on the thread that computes it. */

#ifdef __AVX512F__
#define BLOCK_ROWS 8
#define BLOCK_REGISTERS 3
#else
#define BLOCK_ROWS 6
#define BLOCK_REGISTERS 1
#endif
#define BLOCK_COLUMNS (16 * BLOCK_REGISTERS)
#define PART_WORDS 256          /* depth in words of the part of a sliver of B that stays in L2 */
#define MOST_WORDS 4096         /* maximum depth in words that is packed at once */
#define PANEL_BYTES (512 << 10) /* bytes of A that stay in L2 */
#define GROUP_BYTES (16 << 20)  /* bytes of B that are packed at once */
#define PACKED_SLIVERS (192 / BLOCK_COLUMNS) /* slivers of B that a thread packs at once */

/* A piece of work is one panel of A times one slice of the group's columns. A block of BLOCK_ROWS x BLOCK_COLUMNS
 * elements of C stays in registers while PART_WORDS words of a sliver of A and a sliver of B are multiplied:
 *
 *                            B: a group of columns, packed for all threads
 *                            +---------+---------+
 *               PART_WORDS   |         | |       |   a sliver of BLOCK_COLUMNS columns
 *                            |         |         |
 *            depth in words  +---------+---------+
 *            +-------+         slice 0   slice 1
 *    panel 0 |       |       +---------+---------+
 *            +-------+       |         |         |
 *    panel 1 | --    |       |         | *       |   * is a block of C
 *            |       |       |         |         |
 *            +-------+       +---------+---------+
 *     A: slivers of           C: output
 *     BLOCK_ROWS rows
 *
 * A thread multiplies all rows of its panel by one part of a sliver of B before it continues with the next part. Until
 * the last part, the sums of the panel stay in fp32 after the packed panel. */
typedef struct {
    const void *a, *b, *bias;
    void *output;
    int64_t rows, depth, columns;
    int a_transposed, b_transposed; /* 1 if A is stored as (depth, rows), and B as (columns, depth) */
    int adds;                       /* 1 to add to the output */
    word *b_packed, *a_packed;      /* a_packed: for each thread, a panel of A and the panel's sums */
    int64_t slivers_per_panel;
    int type; /* type of A and B */
    int64_t panels, slices, thread_words; /* thread_words: words of `a_packed` per thread */
    int64_t first_depth, words; /* the part of the depth that is currently packed: first element, size in words */
    int64_t first_column, group_columns; /* the group that is currently multiplied */
    int64_t *next_piece;
} Product;

/* Pack slivers of A's rows or of B's columns, beginning at `first_row` of `rows`. `is_depth_contiguous`: 1 if the
 * matrix is stored along the depth. */
INLINE void pack(const Product *args, const void *matrix, int is_depth_contiguous, int64_t first_row, int64_t rows,
                 int64_t sliver_count, int sliver_width, int type, word *slivers) {
    const int64_t row_stride = args->depth / in_word(type),
                  packed_depth = min64(args->depth - args->first_depth, args->words * in_word(type));
    if (!is_depth_contiguous)
        pack_across((const char *)matrix + (args->first_depth * rows + first_row) * size_of(type), rows,
                    rows - first_row, sliver_count, packed_depth, sliver_width, type, slivers);
    for (int64_t i = 0; i < sliver_count && is_depth_contiguous; i++)
        pack_along((const word *)matrix + (first_row + i * sliver_width) * row_stride +
                       args->first_depth / in_word(type),
                   row_stride, rows - first_row - i * sliver_width, args->words, sliver_width,
                   slivers + i * sliver_width * args->words);
}

INLINE void pack_b(const Product *args, int64_t begin, int64_t end, int thread, int type) {
    const int64_t sliver_count = ceil_div(args->group_columns, BLOCK_COLUMNS);
    for (int64_t sliver; (sliver = take_next(args->next_piece) * PACKED_SLIVERS) < sliver_count;)
        pack(args, args->b, args->b_transposed, args->first_column + sliver * BLOCK_COLUMNS, args->columns,
             min64(PACKED_SLIVERS, sliver_count - sliver), BLOCK_COLUMNS, type,
             args->b_packed + sliver * BLOCK_COLUMNS * args->words);
}
LOOP_BY_TYPE(pack_b, Product)

INLINE void write_block(const Product *args, const float *sums, int64_t row, int64_t column, int type) {
    const int64_t block_rows = min64(BLOCK_ROWS, args->rows - row),
                  block_columns = min64(BLOCK_COLUMNS, args->columns - column);
    for (int64_t i = 0; i < block_rows; i++) {
        int64_t offset = (row + i) * args->columns + column;
        REGISTERS(j, active, 0, block_columns, {
            vec sum = load_fp32(sums + i * BLOCK_COLUMNS + j, active);
            if (args->bias && args->first_depth == 0)
                sum = add(sum, load(args->bias, column + j, active, type));
            if (args->adds)
                sum = add(sum, load(args->output, offset + j, active, type));
            store(args->output, offset + j, active, sum, type);
        });
    }
}

/* Multiply pieces of work: piece number i is slice i % slices of panel i / slices. */
INLINE void multiply_panels(const Product *args, int thread, int type, int output_type) {
    word *a_slivers = args->a_packed + thread * args->thread_words;
    /* `pack` transposes whole squares, so the last square may end after its sliver: `thread_words` includes this space */
    float *sums = (float *)a_slivers + args->thread_words - args->slivers_per_panel * BLOCK_ROWS * BLOCK_COLUMNS;
    const int64_t b_slivers = ceil_div(args->group_columns, BLOCK_COLUMNS);
    for (int64_t piece, packed_panel = -1; (piece = take_next(args->next_piece)) < args->panels * args->slices;) {
        int64_t panel = piece / args->slices, slice = piece % args->slices,
                row = panel * args->slivers_per_panel * BLOCK_ROWS;
        int64_t panel_slivers = ceil_div(min64(args->slivers_per_panel * BLOCK_ROWS, args->rows - row), BLOCK_ROWS);
        if (panel != packed_panel)
            pack(args, args->a, !args->a_transposed, row, args->rows, panel_slivers, BLOCK_ROWS, type, a_slivers);
        packed_panel = panel;
        for (int64_t b_sliver = b_slivers * slice / args->slices; b_sliver < b_slivers * (slice + 1) / args->slices;
             b_sliver++)
            for (int64_t first_word = 0; first_word < args->words; first_word += PART_WORDS) {
                const word *b_part =
                    args->b_packed + b_sliver * BLOCK_COLUMNS * args->words + first_word * BLOCK_COLUMNS;
                const int64_t part_words = min64(PART_WORDS, args->words - first_word);
                for (int64_t a_sliver = 0; a_sliver < panel_slivers; a_sliver++) {
                    float *block_sums = sums + a_sliver * BLOCK_ROWS * BLOCK_COLUMNS;
                    const int prefetches = a_sliver < BLOCK_REGISTERS; /* these slivers together prefetch the whole next part */
                    const char *prefetched = (const char *)(b_part + part_words * BLOCK_COLUMNS) +
                                             (prefetches ? a_sliver * part_words * 64 : 0);
                    multiply_slivers(a_slivers + (a_sliver * args->words + first_word) * BLOCK_ROWS, BLOCK_ROWS, b_part,
                                     part_words, block_sums, BLOCK_COLUMNS, first_word == 0, prefetched,
                                     prefetches ? 64 : 0, type, BLOCK_ROWS, BLOCK_REGISTERS);
                    if (first_word + part_words == args->words)
                        write_block(args, block_sums, row + a_sliver * BLOCK_ROWS,
                                    args->first_column + b_sliver * BLOCK_COLUMNS, output_type);
                }
            }
    }
}

static void multiply_fp32(const void *args, int64_t begin, int64_t end, int thread) {
    multiply_panels(args, thread, FP32, FP32);
}
static void multiply_bf16(const void *args, int64_t begin, int64_t end, int thread) {
    multiply_panels(args, thread, BF16, BF16);
}
static void multiply_to_sums(const void *args, int64_t begin, int64_t end, int thread) {
    multiply_panels(args, thread, BF16, FP32);
}

/* Return the depth in words that is packed at once: equal parts of at most MOST_WORDS. */
static int64_t words_of(int type, int64_t depth) {
    const int64_t whole = ceil_div(depth, in_word(type));
    return ceil_div(whole, ceil_div(whole, MOST_WORDS));
}

/* Return the number of slivers in a panel: panels have equal sizes and fit in L2. */
static int64_t slivers_per_panel_of(int64_t rows, int64_t words) {
    const int64_t slivers = ceil_div(rows, BLOCK_ROWS);
    return ceil_div(slivers, ceil_div(slivers, max64(1, PANEL_BYTES / 4 / words / BLOCK_ROWS)));
}

/* Return the number of columns that are packed at once. */
static int64_t columns_of_group(int64_t columns, int64_t words) {
    return min64(ceil_div(columns, BLOCK_COLUMNS), max64(1, GROUP_BYTES / 4 / words / BLOCK_COLUMNS)) * BLOCK_COLUMNS;
}

/* Return the number of words of `a_packed` per thread: whole cache lines. */
static int64_t thread_words_of(int64_t rows, int64_t words) {
    return ceil_div(slivers_per_panel_of(rows, words) * BLOCK_ROWS * (words + BLOCK_COLUMNS) + SQUARE, 16) * 16;
}

/* Return the number of words of `b_packed`, or with `of_a_packed` of `a_packed` per thread. No size may be 0. */
EXPORT int64_t fma_product_space(uint64_t type, int64_t rows, int64_t depth, int64_t columns, uint64_t of_a_packed) {
    const int64_t words = words_of(type, depth);
    return of_a_packed ? thread_words_of(rows, words) : columns_of_group(columns, words) * words;
}

/* Compute C = A B + bias, see above. In bf16, `depth` must be even if A or B is stored along the depth, and at most
 * 2 * MOST_WORDS if the output is bf16. `sums`: 1 for an fp32 output, whatever the type of A and B; `adds`: 1 to add to
 * the output. */
EXPORT void fma_product(uint64_t type, const void *a, const void *b, const void *bias, void *output, int64_t rows,
                        int64_t depth, int64_t columns, uint64_t a_transposed, uint64_t b_transposed, uint64_t sums,
                        uint64_t adds, word *b_packed, word *a_packed, int threads) {
    int64_t next_piece, words = words_of(type, depth), slivers_per_panel = slivers_per_panel_of(rows, words),
                        most_columns = columns_of_group(columns, words);
    Product args = {a,
                    b,
                    bias,
                    output,
                    rows,
                    depth,
                    columns,
                    a_transposed,
                    b_transposed,
                    adds,
                    b_packed,
                    a_packed,
                    slivers_per_panel,
                    .type = type,
                    .panels = ceil_div(rows, BLOCK_ROWS * slivers_per_panel),
                    .thread_words = thread_words_of(rows, words),
                    .next_piece = &next_piece};
    Loop loop = type == FP32 ? multiply_fp32 : sums ? multiply_to_sums : multiply_bf16;
    for (; args.first_depth < depth; args.first_depth += words * in_word(type), args.adds = 1) {
        args.words = min64(words, ceil_div(depth - args.first_depth, in_word(type)));
        for (args.first_column = 0; args.first_column < columns; args.first_column += most_columns) {
            args.group_columns = min64(most_columns, columns - args.first_column);
            args.slices = min64(ceil_div(8 * threads, args.panels), ceil_div(args.group_columns, BLOCK_COLUMNS));
            next_piece = 0;
            in_shares(threads, pack_b_loop, &args, threads);
            next_piece = 0;
            in_shares(threads, loop, &args, threads);
        }
    }
}
