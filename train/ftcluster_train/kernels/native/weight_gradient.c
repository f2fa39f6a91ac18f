#include "vectors.h"

/* The gradient of a linear layer's weight, gradient' input, on AMX tiles (Intel 64 and IA-32
 * Architectures Software Developer's Manual, volume 1, chapter 18). oneDNN copies the transposed matrix
 * number by number, and takes twice as long for it as for the layer's other products; here 16 x 16 pairs
 * are transposed in registers. The sums are fp32 and go to the optimizer's memory without a tensor between. */

#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)

#define TILE 512  /* numbers of a tile of bf16: 16 rows of 32 */
#define CHUNKS 56 /* tiles along the sum whose products stay in registers: 256 KB of rows are in L2 */
#define DOWN 16   /* tiles of output rows that share what is packed */
#define ACROSS 4  /* tiles of output columns: 64, whose input stays in L1 and L2 */
#define AMX __attribute__((target("amx-tile,amx-bf16")))

typedef struct {
    const bf16 *gradient, *input; /* (rows, outputs), (rows, inputs) */
    float *sums;                  /* (outputs, inputs) */
    int64_t rows, outputs, inputs;
    bf16 *packed, *own; /* of all threads, of one after the other */
    uint64_t adds;
    int64_t slices, first_chunk;
} Product;

INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* A register for each two of 32 rows: the numbers of 16 columns, those of both rows side by side. */
INLINE void pair_rows(const bf16 *from, int64_t columns, int64_t rows, __m512i pairs[16]) {
    for (int i = 0; i < 16; i++) {
        __m256i even = 2 * i < rows ? _mm256_loadu_si256((const void *)(from + 2 * i * columns)) : _mm256_setzero_si256();
        __m256i odd = 2 * i + 1 < rows ? _mm256_loadu_si256((const void *)(from + (2 * i + 1) * columns)) : _mm256_setzero_si256();
        pairs[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
}

INLINE void transpose(__m512i x[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        y[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
        y[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
        y[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
        y[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0x88);
        x[i + 4] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(y[i], y[i + 8], 0xdd);
        x[i + 12] = _mm512_shuffle_i32x4(y[i + 4], y[i + 12], 0xdd);
    }
}

/* Tiles of 32 rows and 16 columns each; those of the gradient are transposed, so that a row of the tile has
 * one column of the matrix. */
INLINE void pack(const bf16 *from, int64_t columns, int64_t rows, int64_t tiles, int64_t apart, int turned, bf16 *to) {
    for (int64_t tile = 0; tile < tiles; tile++) {
        __m512i pairs[16];
        if (rows >= 32)
            pair_rows(from + 16 * tile, columns, 32, pairs);
        else
            pair_rows(from + 16 * tile, columns, rows, pairs);
        if (turned)
            transpose(pairs);
        for (int i = 0; i < 16; i++)
            _mm512_store_si512((__m512i *)(to + tile * apart * TILE) + i, pairs[i]);
    }
}

INLINE int64_t chunks_of(const Product *a) { return least(CHUNKS, parts(a->rows, 32) - a->first_chunk); }

/* Pieces are ACROSS tiles of the input's columns. */
static void pack_input(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Product *a = pointer;
    int64_t chunks = chunks_of(a), tiles = a->inputs / 16;
    for (int64_t piece = first_piece; piece < end_piece; piece++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t row = (a->first_chunk + chunk) * 32, tile = piece * ACROSS;
            pack(a->input + row * a->inputs + tile * 16, a->inputs, a->rows - row, least(ACROSS, tiles - tile), chunks, 0,
                 a->packed + (tile * chunks + chunk) * TILE);
        }
}

/* 32 x 32 sums of `chunks` pairs of tiles; the next tiles of the input come into L2 meanwhile. */
AMX INLINE const char *multiply(const bf16 *above, const bf16 *below, const bf16 *left, const bf16 *right, int64_t chunks,
                                const char *next, int64_t lines, float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < chunks * TILE; i += TILE) {
        _tile_loadd(4, above + i, 64);
        _tile_loadd(6, left + i, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right + i, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, below + i, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        for (int64_t line = 0; line < lines; line++, next += 64)
            _mm_prefetch(next, _MM_HINT_T1);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 512, 128);
    _tile_stored(3, sums + 528, 128);
    return next;
}

/* 32 x 32 sums to their places, past the caches. */
INLINE void put(const float *sums, float *to, int64_t columns, int adds) {
    for (int row = 0; row < 32; row++)
        for (int column = 0; column < 32; column += 16) {
            vec values = _mm512_load_ps(sums + row * 32 + column);
            float *place = to + row * columns + column;
            if (adds)
                _mm512_store_ps(place, add(values, _mm512_load_ps(place)));
            else
                stream_fp32(place, values);
        }
}

/* Pieces are 32 output rows of a slice of the columns, slice by slice. */
AMX static void multiply_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Product *a = pointer;
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16]; /* of a row */
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    float sums[1024] __attribute__((aligned(64)));
    bf16 *own = a->own + thread * DOWN * CHUNKS * TILE;
    int64_t chunks = chunks_of(a), pairs = a->outputs / 32, tiles = a->inputs / 16;
    int adds = a->adds || a->first_chunk;
    _tile_loadconfig(&shapes);
    for (int64_t piece = first_piece, end; piece < end_piece; piece = end) {
        int64_t slice = piece / pairs, pair = piece % pairs;
        end = least(least(piece + DOWN / 2, end_piece), (slice + 1) * pairs);
        int64_t down = 2 * (end - piece);
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            int64_t row = (a->first_chunk + chunk) * 32;
            pack(a->gradient + row * a->outputs + pair * 32, a->outputs, a->rows - row, down, chunks, 1, own + chunk * TILE);
        }
        int64_t last = parts(tiles, ACROSS) * (slice + 1) / a->slices * ACROSS;
        for (int64_t tile = parts(tiles, ACROSS) * slice / a->slices * ACROSS; tile < least(last, tiles); tile += ACROSS) {
            int64_t across = least(ACROSS, tiles - tile);
            const bf16 *block = a->packed + tile * chunks * TILE;
            const char *next = (const char *)(block + across * chunks * TILE);
            int64_t lines = parts(16 * 4, down); /* of a tile, each `across` / 2 times for two of `down` */
            for (int64_t i = 0; i < down; i += 2)
                for (int64_t j = 0; j < across; j += 2) {
                    const bf16 *left = block + j * chunks * TILE, *above = own + i * chunks * TILE;
                    next = multiply(above, above + chunks * TILE, left, left + chunks * TILE, chunks, next, lines, sums);
                    put(sums, a->sums + (pair * 32 + i * 16) * a->inputs + (tile + j) * 16, a->inputs, adds);
                }
        }
    }
    _tile_release();
    _mm_sfence();
}

/* Outputs and inputs are multiples of 32, `sums`, `packed` and `own` start on cache lines. Bytes of `packed`:
 * inputs * CHUNKS * 64, of `own` DOWN * CHUNKS * 1024 a thread. */
EXPORT void weight_gradient(const bf16 *gradient, const bf16 *input, float *sums, int64_t rows, int64_t outputs,
                            int64_t inputs, bf16 *packed, bf16 *own, uint64_t adds, int threads) {
    int64_t pairs = outputs / 32, across = parts(inputs / 16, ACROSS), slices = least(parts(2 * threads, pairs), across);
    Product a = {gradient, input, sums, rows, outputs, inputs, packed, own, adds, slices, 0};
    for (; a.first_chunk < parts(rows, 32); a.first_chunk += CHUNKS) {
        in_threads(threads, pack_input, &a, across);
        in_threads(threads, multiply_pieces, &a, pairs * slices);
    }
}

#endif
