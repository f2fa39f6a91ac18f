#include "vectors.h"

/* The gradient of a linear layer's weight, gradient' input. oneDNN copies the transposed matrix number by number,
 * and takes twice as long for it as for the layer's other products; here 16 x 16 pairs are transposed in
 * registers. The sums are fp32 and go to the optimizer's memory without a tensor between. */

#ifdef WITH_AMX

#include "tiles.h"

#define CHUNKS 56 /* tiles along the sum whose products stay in registers: 256 KB of rows are in L2 */
#define DOWN 12   /* tiles of output rows that share what is packed */
#define ACROSS 4  /* tiles of output columns: 64, whose input stays in L1 and L2 */

/* Sums run over the rows of both matrices, in parts of CHUNKS tiles. A piece of work is one panel of outputs times one
 * slice of the inputs:
 *
 *                            input (rows, inputs), packed for all threads
 *                            +---------+---------+
 *                     rows   | # # # # |         |   CHUNKS x 32 at once
 *                            +---------+---------+
 *             rows             slice 0   slice 1
 *            +-----+         +---------+---------+
 *    panel 0 | #   |         | # # # # |         |   DOWN = 12 tiles of outputs times ACROSS = 4 tiles of inputs,
 *            | #   |         | # # # # |         |   in blocks of HIGH = 3 x 2 tiles
 *            +-----+         +---------+---------+
 *    panel 1 |     |         |         |         |
 *            +-----+         +---------+---------+
 *     gradient, transposed     sums (outputs, inputs)
 *     and packed by a thread
 */
typedef struct {
    const bf16 *gradient, *input; /* (rows, outputs), turned (outputs, rows); (rows, inputs) */
    float *sums;                  /* (outputs, inputs) */
    int64_t rows, outputs, inputs;
    bf16 *packed, *own; /* of all threads, of one after the other */
    int adds, turned;
    int64_t panels, slices, first_chunk;
    int64_t *next;
} Product;

INLINE int64_t chunks_of(const Product *a) { return least(CHUNKS, parts(a->rows, 32) - a->first_chunk); }

/* Pieces are ACROSS tiles of the input's columns. */
static void pack_input(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    const int64_t chunks = chunks_of(a), tiles = a->inputs / 16;
    for (int64_t tile; (tile = next_of(a->next) * ACROSS) < tiles;)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t row = (a->first_chunk + chunk) * 32;
            pack_pairs(a->input + row * a->inputs + tile * 16, a->inputs, a->rows - row, least(ACROSS, tiles - tile), chunks, 0,
                       a->packed + (tile * chunks + chunk) * TILE);
        }
}

/* Left tiles of `panel_outputs` columns of the gradient, from `first_output` on. */
static void pack_gradient(const Product *a, int64_t first_output, int64_t panel_outputs, bf16 *left_tiles) {
    const int64_t chunks = chunks_of(a), down = parts(panel_outputs, 16), first_row = a->first_chunk * 32;
    if (a->turned)
        pack_rows(a->gradient + first_output * a->rows + first_row, a->rows, panel_outputs, down, chunks, chunks, 0, left_tiles);
    for (int64_t chunk = 0; chunk < chunks && !a->turned; chunk++) {
        int64_t row = first_row + chunk * 32;
        pack_pairs(a->gradient + row * a->outputs + first_output, a->outputs, a->rows - row, down, chunks, 1, left_tiles + chunk * TILE);
    }
}

AMX INLINE void multiply_slices(const Product *a, Blocks *blocks, bf16 *left_tiles, int kind) {
    const int64_t chunks = chunks_of(a), tiles = a->inputs / 16, across = parts(tiles, ACROSS);
    for (int64_t piece, packed_panel = -1; (piece = next_of(a->next)) < a->panels * a->slices;) {
        int64_t panel = piece / a->slices, slice = piece % a->slices;
        int64_t first_tile = panel * DOWN, panel_outputs = least(DOWN * 16, a->outputs - first_tile * 16), down = parts(panel_outputs, 16);
        if (panel != packed_panel)
            pack_gradient(a, first_tile * 16, panel_outputs, left_tiles);
        packed_panel = panel;
        for (int64_t stripe = across * slice / a->slices; stripe < across * (slice + 1) / a->slices; stripe++) {
            int64_t input_tile = stripe * ACROSS;
            multiply_blocks(blocks, left_tiles, a->packed + input_tile * chunks * TILE, chunks, down, least(ACROSS, tiles - input_tile),
                            a->sums + first_tile * 16 * a->inputs + input_tile * 16, 0, a->inputs, panel_outputs, kind);
        }
    }
    put(&blocks->before, 16 * HIGH, kind);
}

/* Pieces are slices of the columns of DOWN tiles of output rows. */
AMX static void multiply_pieces(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Product *a = pointer;
    bf16 *left_tiles = a->own + thread * DOWN * CHUNKS * TILE;
    Blocks blocks = {.before = {0}, .turn = 0};
    configure_tiles();
    if (a->adds || a->first_chunk)
        multiply_slices(a, &blocks, left_tiles, ADD);
    else
        multiply_slices(a, &blocks, left_tiles, SET);
    _tile_release();
    _mm_sfence();
}

/* Inputs are a multiple of 32, and outputs, turned rows; `sums`, `packed` and `own` start on cache lines. Bytes of
 * `packed`: inputs * CHUNKS * 64, of `own` DOWN * CHUNKS * TILE * 2 a thread. */
EXPORT void weight_gradient(const bf16 *gradient, const bf16 *input, float *sums, int64_t rows, int64_t outputs,
                            int64_t inputs, bf16 *packed, bf16 *own, uint64_t adds, uint64_t turned, int threads) {
    int64_t next, panels = parts(outputs, 16 * DOWN), across = parts(inputs / 16, ACROSS);
    int64_t slices = least(parts(8 * threads, panels), across);
    Product a = {gradient, input, sums, rows, outputs, inputs, packed, own, adds, turned, panels, slices, 0, &next};
    for (; a.first_chunk < parts(rows, 32); a.first_chunk += CHUNKS) {
        next = 0;
        in_shares(threads, pack_input, &a, threads);
        next = 0;
        in_shares(threads, multiply_pieces, &a, threads);
    }
}

#endif
