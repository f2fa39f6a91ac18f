#include "vectors.h"

/* left right + bias: a linear layer's output, and the gradient of its input. oneDNN is as fast where it has all of
 * its cores, but its threads have equal shares. */

#ifdef WITH_AMX

#include "tiles.h"

#define PANEL (768 << 10) /* bytes of left rows that stay in L2, of which others may have a half */
#define ACROSS 2          /* tiles of columns that come into L2 at once */
#define PACKED 8          /* tiles of columns that are packed at once */
#define GROUP (16 << 20)  /* bytes of right columns that are there at once: of the logits of some models it would be 1 GB */

/* Right columns are packed in groups, left rows in panels. A piece of work is one panel times one slice of the group; the
 * thread that takes it packs the panel, unless it has just had it, and goes through the slice 32 columns at a time:
 *
 *                        a group of right columns, packed for all threads
 *                        +---------+---------+---------+
 *                depth   |         | # #     |         |
 *                        |         | # #     |         |
 *                        +---------+---------+---------+
 *             depth        slice 0   slice 1   slice 2
 *           +-------+    +---------+---------+---------+
 *   panel 0 |       |    |         |         |         |
 *           +-------+    +---------+---------+---------+
 *   panel 1 | # #   |    |         | # #     |         |   `high` tiles of rows, in blocks of HIGH = 3 x ACROSS = 2 tiles
 *           | # #   |    |         | # #     |         |
 *           | # #   |    |         | # #     |         |
 *           +-------+    +---------+---------+---------+
 *            packed        output
 *
 * With an adapter, `low` stands beside a panel and `up` below the group, so their product is a part of the same sums. */
typedef struct {
    const bf16 *left, *right, *bias;
    bf16 *output;
    int64_t rows, depth, columns;
    int turned;           /* whether `right` is (columns, depth), and `down` and `up` likewise */
    const bf16 *down, *up; /* (depth, rank), (rank, columns) */
    bf16 *low;            /* (rows, rank) */
    int64_t rank;
    float scale;
    bf16 *packed, *own;
    int64_t high, panels, slices;
    int64_t first, count; /* columns of this group */
    int64_t *next;
} Product;

INLINE int64_t wide(const Product *a) { return a->depth + a->rank; }

/* Columns from `first` on of a matrix with `depth` rows, as tiles that are a part of `chunks` tiles along the sum. */
static void pack_columns(const bf16 *from, int64_t depth, int64_t columns, int64_t first, int64_t count, int turned,
                         int64_t chunks, bf16 *to) {
    if (turned)
        pack_rows(from + first * depth, depth, count, count / 16, depth / 32, chunks, 1, to);
    for (int64_t chunk = 0; chunk < depth / 32 && !turned; chunk++)
        pack_pairs(from + chunk * 32 * columns + first, columns, 32, count / 16, chunks, 0, to + chunk * TILE);
}

/* Pieces are PACKED tiles of columns; the last one is `down`, which is behind them. */
static void pack_right(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    for (int64_t offset; (offset = next_of(a->next) * PACKED * 16) < a->count + PACKED * 16;) {
        int64_t first_column = a->first + offset, packed_columns = least(PACKED * 16, a->count - offset);
        bf16 *to = a->packed + least(offset, a->count) * wide(a);
        if (packed_columns > 0) {
            pack_columns(a->right, a->depth, a->columns, first_column, packed_columns, a->turned, wide(a) / 32, to);
            pack_columns(a->up, a->rank, a->columns, first_column, packed_columns, a->turned, wide(a) / 32, to + a->depth / 32 * TILE);
        } else {
            pack_columns(a->down, a->depth, a->rank, 0, a->rank, a->turned, a->depth / 32, to);
        }
    }
}

/* `scale` left down of a packed panel, beside it; to `low` as well if `writes`. */
AMX INLINE void multiply_down(const Product *a, Blocks *blocks, bf16 *left_tiles, int64_t row, int64_t rows, int writes) {
    const bf16 *down = a->packed + a->count * wide(a);
    for (int64_t block = 0; block < rows; block += 16 * HIGH)
        for (int64_t column = 0; column < a->rank; column += 32) {
            float sums[1024 / 2 * HIGH] __attribute__((aligned(64)));
            multiply(left_tiles + block * wide(a), wide(a) / 32, down + column * a->depth, a->depth / 32, (const char *)down, 0, sums,
                     &blocks->before, ROUND);
            for (int64_t i = 0; i < least(16 * HIGH, rows - block); i++)
                for (int64_t part = 0; part < 32; part += 16) {
                    __m256i rounded_sums = rounded(mul(_mm512_load_ps(sums + i * 32 + part), all(a->scale)));
                    int64_t tile = (block + i) / 16 * (wide(a) / 32) + (a->depth + column) / 32;
                    _mm256_store_si256((void *)(left_tiles + tile * TILE + i % 16 * 32 + part), rounded_sums);
                    if (writes)
                        _mm256_storeu_si256((void *)(a->low + (row + block + i) * a->rank + column + part), rounded_sums);
                }
        }
}

/* Pieces are slices of columns of a panel of rows, panel by panel. */
AMX static void multiply_panels(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    const int64_t chunks = wide(a) / 32, pairs = a->count / 16 / ACROSS;
    bf16 *left_tiles = a->own + thread * a->high * chunks * TILE;
    Blocks blocks = {.before = {0}, .turn = 0};
    configure_tiles();
    for (int64_t piece, packed_panel = -1; (piece = next_of(a->next)) < a->panels * a->slices;) {
        int64_t panel = piece / a->slices, slice = piece % a->slices;
        int64_t row = panel * a->high * 16, panel_rows = least(a->high * 16, a->rows - row);
        if (panel != packed_panel) {
            pack_rows(a->left + row * a->depth, a->depth, panel_rows, parts(panel_rows, 16), a->depth / 32, chunks, 0, left_tiles);
            multiply_down(a, &blocks, left_tiles, row, panel_rows, slice == 0 && a->first == 0);
        }
        packed_panel = panel;
        for (int64_t pair = pairs * slice / a->slices; pair < pairs * (slice + 1) / a->slices; pair++) {
            int64_t offset = pair * ACROSS * 16, column = a->first + offset;
            multiply_blocks(&blocks, left_tiles, a->packed + offset * wide(a), chunks, parts(panel_rows, 16), ACROSS,
                            a->output + row * a->columns + column, a->bias ? a->bias + column : 0, a->columns, panel_rows, ROUND);
        }
    }
    put(&blocks.before, 16 * HIGH, ROUND);
    _tile_release();
    _mm_sfence();
}

/* Tiles of a panel's rows: what stays in L2, but a few pieces for each thread, and panels of the same size. */
static int64_t panel_of(int64_t rows, int64_t depth, int64_t columns, int threads) {
    const int64_t blocks = parts(rows, 16 * HIGH), slices = most(1, columns / 128);
    int64_t panels = parts(blocks, most(1, PANEL / (32 * HIGH * depth)));
    if (threads > 1)
        panels = most(panels, least(blocks, parts(4 * threads, slices)));
    return parts(blocks, panels) * HIGH;
}

/* With `low`, what an adapter adds as well: low up, where low = scale left down. `depth`, `columns` and `rank`, which
 * may be 0, are multiples of 32; `output`, `packed` and `own` start on cache lines. Bytes of `packed`: GROUP, but no
 * more than (depth + rank) * columns * 2 and no less than (depth + rank) * 64, and depth * rank * 2; of `own` PANEL a
 * thread, or 96 * (depth + rank) where that is more. */
EXPORT void product(const bf16 *left, const bf16 *right, const bf16 *bias, bf16 *output, int64_t rows, int64_t depth,
                    int64_t columns, uint64_t turned, const bf16 *down, const bf16 *up, bf16 *low, int64_t rank,
                    float scale, bf16 *packed, bf16 *own, int threads) {
    int64_t next, group = least(columns, most(GROUP / 2 / (depth + rank) / 32, 1) * 32);
    Product a = {left, right, bias, output, rows, depth, columns, turned, down, up, low, rank, scale, packed, own,
                 .first = 0, .next = &next};
    for (; a.first < columns; a.first += group) {
        a.count = least(group, columns - a.first);
        a.high = panel_of(rows, depth + rank, a.count, threads);
        a.panels = parts(rows, 16 * a.high);
        a.slices = least(parts(8 * threads, a.panels), most(1, a.count / 128));
        next = 0;
        in_shares(threads, pack_right, &a, threads);
        next = 0;
        in_shares(threads, multiply_panels, &a, threads);
    }
}

#endif
