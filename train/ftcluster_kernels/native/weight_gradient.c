#include "vectors.h"

/* The gradient of a linear layer's weight: the transposed gradient of the output times the input. oneDNN copies the
 * transposed matrix element by element, and takes twice as long as it does for the layer's other matmuls. These
 * loops transpose 16 x 16 pairs of elements in registers, and write the fp32 result directly to the optimizer's memory. */

#ifdef WITH_AMX

#include "tiles.h"

#define DEPTH_TILES 56 /* tiles of the depth that are multiplied at once, so that 256 KB of packed tiles stay in L2 */
#define PANEL_TILES 12 /* tiles of outputs that share packed tiles of the input */
#define STRIPE_TILES 4 /* tiles of inputs: 64 columns, which stay in L1 and L2 */

/* The depth of this multiplication is the rows of both matrices, in parts of DEPTH_TILES tiles. A piece of work is one
 * panel of outputs times one slice of the inputs:
 *
 *                            B: input (rows, inputs), packed for all threads
 *                            +---------+---------+
 *                     rows   | # # # # |         |   DEPTH_TILES x 32 at once
 *                            +---------+---------+
 *             rows             slice 0   slice 1
 *            +-----+         +---------+---------+
 *    panel 0 | #   |         | # # # # |         |   PANEL_TILES = 12 tiles of outputs times STRIPE_TILES = 4 tiles of
 *            | #   |         | # # # # |         |   inputs, in blocks of BLOCK_TILES = 3 by 2 tiles
 *            +-----+         +---------+---------+
 *    panel 1 |     |         |         |         |
 *            +-----+         +---------+---------+
 *     A: gradient,             C: sums (outputs, inputs)
 *     transposed and
 *     packed by a thread
 */
typedef struct {
    const bf16 *gradient, *input; /* (rows, outputs), or if transposed (outputs, rows); (rows, inputs) */
    float *sums;                  /* (outputs, inputs) */
    int64_t rows, outputs, inputs;
    bf16 *input_packed, *gradient_packed; /* gradient_packed: a panel for each thread */
    int adds, gradient_transposed;
    int64_t panels, slices, first_depth_tile;
    int64_t *next_piece;
} Product;

INLINE int64_t depth_tiles_of(const Product *args) {
    return min64(DEPTH_TILES, ceil_div(args->rows, 32) - args->first_depth_tile);
}

/* Each piece of work is STRIPE_TILES tiles of columns of the input. */
static void pack_input(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *args = pointer;
    const int64_t depth_tiles = depth_tiles_of(args), input_tiles = args->inputs / 16;
    for (int64_t input_tile; (input_tile = take_next(args->next_piece) * STRIPE_TILES) < input_tiles;)
        for (int64_t depth_tile = 0; depth_tile < depth_tiles; depth_tile++) {
            int64_t row = (args->first_depth_tile + depth_tile) * 32;
            pack_pairs(args->input + row * args->inputs + input_tile * 16, args->inputs, args->rows - row,
                       min64(STRIPE_TILES, input_tiles - input_tile), depth_tiles, 0,
                       args->input_packed + (input_tile * depth_tiles + depth_tile) * TILE);
        }
}

/* Pack `panel_outputs` columns of the gradient, from `first_output` on, as tiles of A. */
static void pack_gradient(const Product *args, int64_t first_output, int64_t panel_outputs, bf16 *gradient_tiles) {
    const int64_t depth_tiles = depth_tiles_of(args), tile_rows = ceil_div(panel_outputs, 16),
                  first_row = args->first_depth_tile * 32;
    if (args->gradient_transposed)
        pack_rows(args->gradient + first_output * args->rows + first_row, args->rows, panel_outputs, tile_rows,
                  depth_tiles, depth_tiles, 0, gradient_tiles);
    for (int64_t depth_tile = 0; depth_tile < depth_tiles && !args->gradient_transposed; depth_tile++) {
        int64_t row = first_row + depth_tile * 32;
        pack_pairs(args->gradient + row * args->outputs + first_output, args->outputs, args->rows - row, tile_rows,
                   depth_tiles, 1, gradient_tiles + depth_tile * TILE);
    }
}

AMX INLINE void multiply_slices(const Product *args, Blocks *blocks, bf16 *gradient_tiles, int kind) {
    const int64_t depth_tiles = depth_tiles_of(args), input_tiles = args->inputs / 16,
                  stripes = ceil_div(input_tiles, STRIPE_TILES);
    for (int64_t piece, packed_panel = -1; (piece = take_next(args->next_piece)) < args->panels * args->slices;) {
        int64_t panel = piece / args->slices, slice = piece % args->slices;
        int64_t first_tile = panel * PANEL_TILES,
                panel_outputs = min64(PANEL_TILES * 16, args->outputs - first_tile * 16),
                tile_rows = ceil_div(panel_outputs, 16);
        if (panel != packed_panel)
            pack_gradient(args, first_tile * 16, panel_outputs, gradient_tiles);
        packed_panel = panel;
        for (int64_t stripe = stripes * slice / args->slices; stripe < stripes * (slice + 1) / args->slices; stripe++) {
            int64_t input_tile = stripe * STRIPE_TILES;
            multiply_blocks(blocks, gradient_tiles, args->input_packed + input_tile * depth_tiles * TILE, depth_tiles,
                            tile_rows, min64(STRIPE_TILES, input_tiles - input_tile),
                            args->sums + first_tile * 16 * args->inputs + input_tile * 16, 0, args->inputs,
                            panel_outputs, kind);
        }
    }
    write_rows(&blocks->previous, 16 * BLOCK_TILES, kind);
}

/* Each piece of work is one panel of outputs (PANEL_TILES tiles) times one slice of the inputs. */
AMX static void multiply_pieces(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *args = pointer;
    bf16 *gradient_tiles = args->gradient_packed + thread * PANEL_TILES * DEPTH_TILES * TILE;
    Blocks blocks = {.previous = {0}, .current = 0};
    configure_tiles();
    if (args->adds || args->first_depth_tile)
        multiply_slices(args, &blocks, gradient_tiles, ADD_FP32);
    else
        multiply_slices(args, &blocks, gradient_tiles, STORE_FP32);
    _tile_release();
    _mm_sfence();
}

/* `inputs` is a multiple of 32, and so is `outputs`, or `rows` if the gradient is transposed. `sums`, `input_packed` and
 * `gradient_packed` start on cache lines. Bytes of `input_packed`: inputs * DEPTH_TILES * 64; of `gradient_packed` for
 * each thread: PANEL_TILES * DEPTH_TILES * TILE * 2. `adds`: 1 to add to `sums` instead of replacing it. */
EXPORT void weight_gradient(const bf16 *gradient, const bf16 *input, float *sums, int64_t rows, int64_t outputs,
                            int64_t inputs, bf16 *input_packed, bf16 *gradient_packed, uint64_t adds,
                            uint64_t gradient_transposed, int threads) {
    int64_t next_piece, panels = ceil_div(outputs, 16 * PANEL_TILES), stripes = ceil_div(inputs / 16, STRIPE_TILES);
    int64_t slices = min64(ceil_div(8 * threads, panels), stripes);
    Product args = {
        gradient, input,  sums, rows,       outputs, inputs, input_packed, gradient_packed, adds, gradient_transposed,
        panels,   slices, 0,    &next_piece};
    for (; args.first_depth_tile < ceil_div(rows, 32); args.first_depth_tile += DEPTH_TILES) {
        next_piece = 0;
        in_shares(threads, pack_input, &args, threads);
        next_piece = 0;
        in_shares(threads, multiply_pieces, &args, threads);
    }
}

#endif
