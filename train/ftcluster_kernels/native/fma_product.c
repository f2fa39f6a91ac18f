#include "vectors.h"

#include "fma.h"

/* Products of large matrices: left right + bias. A panel of left rows stays in L2, and a part of WIDE right columns that
 * all of its rows are multiplied by. Threads take the next piece when they have done one; a sum does not depend on who
 * computes it. */

#ifdef __AVX512F__
#define HIGH 8
#define REGISTERS_WIDE 3
#else
#define HIGH 6
#define REGISTERS_WIDE 1
#endif
#define WIDE (16 * REGISTERS_WIDE)
#define PART 256          /* words along the sum whose right columns stay in L2 */
#define DEEP 4096         /* words along the sum that are packed at once */
#define PANEL (512 << 10) /* bytes of left rows that stay in L2 */
#define GROUP (16 << 20)  /* bytes of right columns that are packed at once */
#define TOGETHER (192 / WIDE) /* slivers of WIDE columns that a thread packs */

/* A piece of work is one panel of left rows times one slice of the group's columns. Sums of HIGH x WIDE numbers stay in
 * registers while PART words of a left sliver and a right sliver are multiplied:
 *
 *                            a group of right columns, packed for all threads
 *                            +---------+---------+
 *               PART words   |         | |       |   a sliver of WIDE columns
 *                            |         |         |
 *             words          +---------+---------+
 *            +-------+         slice 0   slice 1
 *    panel 0 |       |       +---------+---------+
 *            +-------+       |         |         |
 *    panel 1 | --    |       |         | *       |   * is a block of HIGH x WIDE sums
 *            |       |       |         |         |
 *            +-------+       +---------+---------+
 *     slivers of HIGH rows     output
 */
typedef struct {
    const void *left, *right, *bias;
    void *output;
    int64_t rows, depth, columns;
    int left_turned, right_turned; /* whether they are stored as (depth, rows) and as (columns, depth) */
    int adds;                      /* whether the output is added to */
    word *packed, *own;
    int64_t high; /* slivers of a panel */
    int type;     /* of the factors */
    int64_t panels, slices, own_size;
    int64_t begin, words; /* along the sum: numbers before, and words that are packed */
    int64_t first, count; /* columns of this group */
    int64_t *next;
} Product;

/* Slivers of `wide` rows of a factor (columns of the right one) from `first` on, of which it has `count`. */
INLINE void pack(const Product *a, const void *from, int along, int64_t first, int64_t count, int64_t slivers, int wide,
                 int type, word *to) {
    const int64_t apart = a->depth / in_word(type), packed_depth = least(a->depth - a->begin, a->words * in_word(type));
    if (!along)
        pack_across((const char *)from + (a->begin * count + first) * size_of(type), count, count - first, slivers, packed_depth, wide, type, to);
    for (int64_t i = 0; i < slivers && along; i++)
        pack_along((const word *)from + (first + i * wide) * apart + a->begin / in_word(type), apart, count - first - i * wide,
                   a->words, wide, to + i * wide * a->words);
}

INLINE void pack_right(const Product *a, int64_t begin, int64_t end, int thread, int type) {
    const int64_t slivers = parts(a->count, WIDE);
    for (int64_t sliver; (sliver = next_of(a->next) * TOGETHER) < slivers;)
        pack(a, a->right, a->right_turned, a->first + sliver * WIDE, a->columns, least(TOGETHER, slivers - sliver), WIDE, type,
             a->packed + sliver * WIDE * a->words);
}
LOOP_BY_TYPE(pack_right, Product)

INLINE void put(const Product *a, const float *sums, int64_t row, int64_t column, int type) {
    const int64_t block_rows = least(HIGH, a->rows - row), block_columns = least(WIDE, a->columns - column);
    for (int64_t i = 0; i < block_rows; i++) {
        int64_t place = (row + i) * a->columns + column;
        REGISTERS(j, some, 0, block_columns, {
            vec sum = load_fp32(sums + i * WIDE + j, some);
            if (a->bias && a->begin == 0)
                sum = add(sum, load(a->bias, column + j, some, type));
            if (a->adds)
                sum = add(sum, load(a->output, place + j, some, type));
            store(a->output, place + j, some, sum, type);
        });
    }
}

/* Pieces are slices of the columns of a panel of rows, panel by panel. `out`: the type of the output. */
INLINE void multiply_panels(const Product *a, int thread, int type, int out) {
    word *left_slivers = a->own + thread * a->own_size;
    /* the last square of `left_slivers` ends behind its sliver */
    float *sums = (float *)left_slivers + a->own_size - a->high * HIGH * WIDE;
    const int64_t slivers = parts(a->count, WIDE);
    for (int64_t piece, packed_panel = -1; (piece = next_of(a->next)) < a->panels * a->slices;) {
        int64_t panel = piece / a->slices, slice = piece % a->slices, row = panel * a->high * HIGH;
        int64_t panel_slivers = parts(least(a->high * HIGH, a->rows - row), HIGH);
        if (panel != packed_panel)
            pack(a, a->left, !a->left_turned, row, a->rows, panel_slivers, HIGH, type, left_slivers);
        packed_panel = panel;
        for (int64_t sliver = slivers * slice / a->slices; sliver < slivers * (slice + 1) / a->slices; sliver++)
            for (int64_t part = 0; part < a->words; part += PART) {
                const word *right = a->packed + sliver * WIDE * a->words + part * WIDE;
                const int64_t part_words = least(PART, a->words - part);
                for (int64_t left_sliver = 0; left_sliver < panel_slivers; left_sliver++) {
                    float *block_sums = sums + left_sliver * HIGH * WIDE;
                    const int brings = left_sliver < REGISTERS_WIDE; /* then all of the next part is there */
                    const char *ahead = (const char *)(right + part_words * WIDE) + (brings ? left_sliver * part_words * 64 : 0);
                    multiply(left_slivers + (left_sliver * a->words + part) * HIGH, right, part_words, block_sums, WIDE, part == 0,
                             ahead, brings ? 64 : 0, type, HIGH, REGISTERS_WIDE);
                    if (part + part_words == a->words)
                        put(a, block_sums, row + left_sliver * HIGH, a->first + sliver * WIDE, out);
                }
            }
    }
}

static void multiply_fp32(const void *a, int64_t begin, int64_t end, int thread) { multiply_panels(a, thread, FP32, FP32); }
static void multiply_bf16(const void *a, int64_t begin, int64_t end, int thread) { multiply_panels(a, thread, BF16, BF16); }
static void multiply_to_sums(const void *a, int64_t begin, int64_t end, int thread) { multiply_panels(a, thread, BF16, FP32); }

/* Words along the sum that are packed at once: equal parts, of which each is no more than DEEP. */
static int64_t words_of(int type, int64_t depth) {
    const int64_t whole = parts(depth, in_word(type));
    return parts(whole, parts(whole, DEEP));
}

/* Slivers of rows that stay in L2: panels of the same size. */
static int64_t high_of(int64_t rows, int64_t words) {
    const int64_t slivers = parts(rows, HIGH);
    return parts(slivers, parts(slivers, most(1, PANEL / 4 / words / HIGH)));
}

/* Columns that are packed at once. */
static int64_t group_of(int64_t columns, int64_t words) {
    return least(parts(columns, WIDE), most(1, GROUP / 4 / words / WIDE)) * WIDE;
}

/* Words that each thread has of `own`: whole cache lines. */
static int64_t own_of(int64_t rows, int64_t words) { return parts(high_of(rows, words) * HIGH * (words + WIDE) + SQUARE, 16) * 16; }

/* Words of `packed`, or of what each thread has of `own`. No size is 0. */
EXPORT int64_t fma_product_space(uint64_t type, int64_t rows, int64_t depth, int64_t columns, uint64_t of_own) {
    const int64_t words = words_of(type, depth);
    return of_own ? own_of(rows, words) : group_of(columns, words) * words;
}

/* `depth` is even for bf16 where a factor is stored along the sum, and at most 2 * DEEP for an output in bf16. `sums`:
 * the output is fp32, whatever the factors are; `adds`: it is added to. */
EXPORT void fma_product(uint64_t type, const void *left, const void *right, const void *bias, void *output, int64_t rows,
                        int64_t depth, int64_t columns, uint64_t left_turned, uint64_t right_turned, uint64_t sums,
                        uint64_t adds, word *packed, word *own, int threads) {
    int64_t next, words = words_of(type, depth), high = high_of(rows, words), group = group_of(columns, words);
    Product a = {left, right, bias, output, rows, depth, columns, left_turned, right_turned, adds, packed, own, high,
                 .type = type, .panels = parts(rows, HIGH * high), .own_size = own_of(rows, words), .next = &next};
    Loop loop = type == FP32 ? multiply_fp32 : sums ? multiply_to_sums : multiply_bf16;
    for (; a.begin < depth; a.begin += words * in_word(type), a.adds = 1) {
        a.words = least(words, parts(depth - a.begin, in_word(type)));
        for (a.first = 0; a.first < columns; a.first += group) {
            a.count = least(group, columns - a.first);
            a.slices = least(parts(8 * threads, a.panels), parts(a.count, WIDE));
            next = 0;
            in_shares(threads, pack_right_loop, &a, threads);
            next = 0;
            in_shares(threads, loop, &a, threads);
        }
    }
}
