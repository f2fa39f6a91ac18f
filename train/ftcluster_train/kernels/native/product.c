#include "vectors.h"

/* left right + bias: a linear layer's output, and the gradient of its input. oneDNN is as fast where it has all of
 * its cores, but its threads have equal shares. */

#ifdef WITH_AMX

#include "tiles.h"

#define PANEL (768 << 10) /* bytes of left rows that stay in L2, of which others may have a half */
#define ACROSS 2          /* tiles of columns that come into L2 at once */
#define PACKED 8          /* tiles of columns that are packed at once */

typedef struct {
    const bf16 *left, *right, *bias;
    bf16 *output;
    int64_t rows, depth, columns;
    int turned; /* whether `right` is (columns, depth) */
    bf16 *packed, *own;
    int64_t down, panels, slices;
    int64_t *next;
} Product;

static void pack_right(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    const int64_t chunks = a->depth / 32, tiles = a->columns / 16;
    for (int64_t tile; (tile = next_of(a->next) * PACKED) < tiles;) {
        int64_t count = least(PACKED, tiles - tile);
        bf16 *to = a->packed + tile * chunks * TILE;
        if (a->turned)
            pack_rows(a->right + tile * 16 * a->depth, a->depth, count * 16, count, chunks, 1, to);
        for (int64_t chunk = 0; chunk < chunks && !a->turned; chunk++)
            pack_pairs(a->right + chunk * 32 * a->columns + tile * 16, a->columns, 32, count, chunks, 0, to + chunk * TILE);
    }
}

/* Pieces are slices of columns of a panel of rows, panel by panel. */
AMX static void multiply_panels(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    const int64_t chunks = a->depth / 32, pairs = a->columns / 16 / ACROSS;
    bf16 *own = a->own + thread * a->down * chunks * TILE;
    Blocks blocks = {.before = {0}, .turn = 0};
    configure_tiles();
    for (int64_t piece, packed = -1; (piece = next_of(a->next)) < a->panels * a->slices;) {
        int64_t panel = piece / a->slices, slice = piece % a->slices;
        int64_t row = panel * a->down * 16, rows = least(a->down * 16, a->rows - row);
        if (panel != packed)
            pack_rows(a->left + row * a->depth, a->depth, rows, parts(rows, 16), chunks, 0, own);
        packed = panel;
        for (int64_t pair = pairs * slice / a->slices; pair < pairs * (slice + 1) / a->slices; pair++) {
            int64_t column = pair * ACROSS * 16;
            multiply_blocks(&blocks, own, a->packed + column * a->depth, chunks, parts(rows, 16), ACROSS,
                            a->output + row * a->columns + column, a->bias ? a->bias + column : 0, a->columns, rows, ROUND);
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

/* `depth` and `columns` are multiples of 32; `output`, `packed` and `own` start on cache lines. Bytes of `packed`:
 * depth * columns * 2, of `own` PANEL a thread, or 96 * depth where that is more. */
EXPORT void product(const bf16 *left, const bf16 *right, const bf16 *bias, bf16 *output, int64_t rows, int64_t depth,
                    int64_t columns, uint64_t turned, bf16 *packed, bf16 *own, int threads) {
    int64_t next = 0, down = panel_of(rows, depth, columns, threads), panels = parts(rows, 16 * down);
    int64_t slices = least(parts(8 * threads, panels), most(1, columns / 128));
    Product a = {left, right, bias, output, rows, depth, columns, turned, packed, own, down, panels, slices, &next};
    in_shares(threads, pack_right, &a, threads);
    next = 0;
    in_shares(threads, multiply_panels, &a, threads);
}

#endif
