#include "vectors.h"

/* C = A B + bias: the output of a linear layer, and the gradient of the layer's input. oneDNN is equally fast
 * if no other program uses its cores, but it divides the work among its threads in advance. */

#ifdef WITH_AMX

#include "tiles.h"

#define PANEL_BYTES (768 << 10) /* bytes of A that stay in L2, together with other data */
#define STRIPE_TILES 2          /* columns of tiles that are loaded into L2 at once */
#define PACKED_TILES 8          /* columns of tiles that a thread packs at once */
#define GROUP_BYTES (16 << 20)  /* bytes of B that are packed at once: the head of a language model can have 1 GB */

/* B is packed in groups of columns, A in panels of rows. A piece of work is one panel times one slice of the group. The
 * thread that takes a piece packs the panel, unless the thread's previous piece had the same panel. Then it computes
 * the slice in stripes of 32 columns:
 *
 *                        B: a group of columns, packed for all threads
 *                        +---------+---------+---------+
 *                depth   |         | # #     |         |
 *                        |         | # #     |         |
 *                        +---------+---------+---------+
 *             depth        slice 0   slice 1   slice 2
 *           +-------+    +---------+---------+---------+
 *   panel 0 |       |    |         |         |         |
 *           +-------+    +---------+---------+---------+
 *   panel 1 | # #   |    |         | # #     |         |   `panel_tiles` tiles of rows, in blocks of BLOCK_TILES = 3 by
 *           | # #   |    |         | # #     |         |   STRIPE_TILES = 2 tiles
 *           | # #   |    |         | # #     |         |
 *           +-------+    +---------+---------+---------+
 *           A: packed      C: output
 *           by a thread
 *
 * A low-rank adapter adds down_output * `up` to C, where down_output = `scale` * A * `down`. down_output is packed
 * beside the panel and `up` below the group, as additional depth of the same multiplication. */
typedef struct {
    const bf16 *a, *b, *bias;
    bf16 *output;
    int64_t rows, depth, columns;
    int b_transposed;      /* 1 if `b` is stored as (columns, depth), and `down` and `up` likewise */
    const bf16 *down, *up; /* an adapter's matrices, (depth, rank) and (rank, columns); rank is 0 without an adapter */
    bf16 *down_output;     /* (rows, rank) */
    int64_t rank;
    float scale;
    bf16 *b_packed, *a_packed; /* a_packed: for each thread, a panel */
    int64_t panel_tiles, panels, slices;
    int64_t first_column, group_columns; /* the group that is currently multiplied */
    int64_t *next_piece;
} Product;

INLINE int64_t total_depth(const Product *args) { return args->depth + args->rank; }

/* Pack `count` columns, beginning at `first`, as tiles of B. The matrix is stored as (depth, columns), or with
 * `transposed` as (columns, depth). Columns of tiles are `total_depth_tiles` apart, for further depth. */
static void pack_columns(const bf16 *matrix, int64_t depth, int64_t columns, int64_t first, int64_t count,
                         int transposed, int64_t total_depth_tiles, bf16 *packed_tiles) {
    if (transposed)
        pack_rows(matrix + first * depth, depth, count, count / 16, depth / 32, total_depth_tiles, 1, packed_tiles);
    for (int64_t depth_tile = 0; depth_tile < depth / 32 && !transposed; depth_tile++)
        pack_pairs(matrix + depth_tile * 32 * columns + first, columns, 32, count / 16, total_depth_tiles, 0,
                   packed_tiles + depth_tile * TILE);
}

/* Pack pieces of PACKED_TILES columns of tiles of `b` and `up`; the last piece is `down`, which is packed after them. */
static void pack_b(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *args = pointer;
    for (int64_t offset;
         (offset = take_next(args->next_piece) * PACKED_TILES * 16) < args->group_columns + PACKED_TILES * 16;) {
        int64_t column = args->first_column + offset,
                packed_columns = min64(PACKED_TILES * 16, args->group_columns - offset);
        bf16 *packed_tiles = args->b_packed + min64(offset, args->group_columns) * total_depth(args);
        if (packed_columns > 0) {
            pack_columns(args->b, args->depth, args->columns, column, packed_columns, args->b_transposed,
                         total_depth(args) / 32, packed_tiles);
            pack_columns(args->up, args->rank, args->columns, column, packed_columns, args->b_transposed,
                         total_depth(args) / 32, packed_tiles + args->depth / 32 * TILE);
        } else {
            pack_columns(args->down, args->depth, args->rank, 0, args->rank, args->b_transposed, args->depth / 32,
                         packed_tiles);
        }
    }
}

/* Compute down_output for a packed panel and pack it beside the panel; with `writes`, also store it. */
AMX INLINE void multiply_down(const Product *args, Blocks *blocks, bf16 *a_tiles, int64_t row, int64_t rows,
                              int writes) {
    const bf16 *down_tiles = args->b_packed + args->group_columns * total_depth(args);
    for (int64_t block = 0; block < rows; block += 16 * BLOCK_TILES)
        for (int64_t column = 0; column < args->rank; column += 32) {
            float sums[1024 / 2 * BLOCK_TILES] __attribute__((aligned(64)));
            multiply_block(a_tiles + block * total_depth(args), total_depth(args) / 32,
                           down_tiles + column * args->depth, args->depth / 32, (const char *)down_tiles, 0, sums,
                           &blocks->previous, STORE_BF16);
            for (int64_t i = 0; i < min64(16 * BLOCK_TILES, rows - block); i++)
                for (int64_t half = 0; half < 32; half += 16) {
                    __m256i rounded_sums = rounded(mul(_mm512_load_ps(sums + i * 32 + half), broadcast(args->scale)));
                    int64_t tile = (block + i) / 16 * (total_depth(args) / 32) + (args->depth + column) / 32;
                    _mm256_store_si256((void *)(a_tiles + tile * TILE + i % 16 * 32 + half), rounded_sums);
                    if (writes)
                        _mm256_storeu_si256(
                            (void *)(args->down_output + (row + block + i) * args->rank + column + half), rounded_sums);
                }
        }
}

/* Multiply pieces of work: piece number i is slice i % slices of panel i / slices. */
AMX static void multiply_panels(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *args = pointer;
    const int64_t depth_tiles = total_depth(args) / 32, stripes = args->group_columns / 16 / STRIPE_TILES;
    bf16 *a_tiles = args->a_packed + thread * args->panel_tiles * depth_tiles * TILE;
    Blocks blocks = {.previous = {0}, .current = 0};
    configure_tiles();
    for (int64_t piece, packed_panel = -1; (piece = take_next(args->next_piece)) < args->panels * args->slices;) {
        int64_t panel = piece / args->slices, slice = piece % args->slices;
        int64_t row = panel * args->panel_tiles * 16, panel_rows = min64(args->panel_tiles * 16, args->rows - row);
        if (panel != packed_panel) {
            pack_rows(args->a + row * args->depth, args->depth, panel_rows, ceil_div(panel_rows, 16), args->depth / 32,
                      depth_tiles, 0, a_tiles);
            multiply_down(args, &blocks, a_tiles, row, panel_rows, slice == 0 && args->first_column == 0);
        }
        packed_panel = panel;
        for (int64_t stripe = stripes * slice / args->slices; stripe < stripes * (slice + 1) / args->slices; stripe++) {
            int64_t offset = stripe * STRIPE_TILES * 16, column = args->first_column + offset;
            multiply_blocks(&blocks, a_tiles, args->b_packed + offset * total_depth(args), depth_tiles,
                            ceil_div(panel_rows, 16), STRIPE_TILES, args->output + row * args->columns + column,
                            args->bias ? args->bias + column : 0, args->columns, panel_rows, STORE_BF16);
        }
    }
    write_rows(&blocks.previous, 16 * BLOCK_TILES, STORE_BF16);
    _tile_release();
    _mm_sfence();
}

/* Return the number of rows of tiles in a panel: panels have equal sizes and fit in L2, and there are enough panels to
 * give each thread a few pieces of work. */
static int64_t tiles_of_panel(int64_t rows, int64_t depth, int64_t columns, int threads) {
    const int64_t blocks = ceil_div(rows, 16 * BLOCK_TILES), slices = max64(1, columns / 128);
    int64_t panels = ceil_div(blocks, max64(1, PANEL_BYTES / (32 * BLOCK_TILES * depth)));
    if (threads > 1)
        panels = max64(panels, min64(blocks, ceil_div(4 * threads, slices)));
    return ceil_div(blocks, panels) * BLOCK_TILES;
}

/* Multiply as described above. `depth`, `columns` and `rank` must be multiples of 32; `rank` may be 0. `output`,
 * `b_packed` and `a_packed` must start on cache lines. `b_packed` needs GROUP_BYTES bytes, but at most
 * (depth + rank) * columns * 2 and at least (depth + rank) * 64, plus depth * rank * 2. `a_packed` needs for each
 * thread PANEL_BYTES bytes, or 96 * (depth + rank) if that is more. */
EXPORT void product(const bf16 *a, const bf16 *b, const bf16 *bias, bf16 *output, int64_t rows, int64_t depth,
                    int64_t columns, uint64_t b_transposed, const bf16 *down, const bf16 *up, bf16 *down_output,
                    int64_t rank, float scale, bf16 *b_packed, bf16 *a_packed, int threads) {
    int64_t next_piece, most_columns = min64(columns, max64(GROUP_BYTES / 2 / (depth + rank) / 32, 1) * 32);
    Product args = {a,
                    b,
                    bias,
                    output,
                    rows,
                    depth,
                    columns,
                    b_transposed,
                    down,
                    up,
                    down_output,
                    rank,
                    scale,
                    b_packed,
                    a_packed,
                    .first_column = 0,
                    .next_piece = &next_piece};
    for (; args.first_column < columns; args.first_column += most_columns) {
        args.group_columns = min64(most_columns, columns - args.first_column);
        args.panel_tiles = tiles_of_panel(rows, depth + rank, args.group_columns, threads);
        args.panels = ceil_div(rows, 16 * args.panel_tiles);
        args.slices = min64(ceil_div(8 * threads, args.panels), max64(1, args.group_columns / 128));
        next_piece = 0;
        in_shares(threads, pack_b, &args, threads);
        next_piece = 0;
        in_shares(threads, multiply_panels, &args, threads);
    }
}

#endif
