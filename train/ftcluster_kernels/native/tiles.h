/* Matrix multiplication in bf16 on AMX tiles (Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 1, chapter 18).
 *
 * A tile register has 16 rows of 64 bytes. C = A B is computed in blocks of 48 x 32 elements of C, which stay in six
 * tile registers. A and B are packed tile by tile beforehand:
 *
 *   A tile: 16 rows of C x 32 of the depth       B tile: 32 of the depth x 16 columns of C, pairs of rows interleaved
 *
 *             depth 0 1 2 ... 31                           column   0     1    ...   15
 *   row  0        a a a ...  a                   depth  0, 1       b b   b b        b b
 *   row  1        a a a ...  a                   depth  2, 3       b b   b b        b b
 *   ...                                          ...
 *   row 15        a a a ...  a                   depth 30, 31      b b   b b        b b
 *
 * A block loads five tiles from L2 for six tile multiplications, see `multiply_tiles`. A block of 32 x 32 elements would
 * load four tiles for four multiplications, and L2 would be the limit. Meanwhile the previous block is written.
 *
 * A thread that has finished a piece of work takes the next piece. With equal shares, all threads would wait for the
 * slowest thread, for example if another virtual machine uses half of its core. The value of an element of C does not
 * depend on the thread that computes it. */

#define TILE 512      /* elements of a bf16 tile: 16 rows of 32 elements */
#define BLOCK_TILES 3 /* tiles of a block from top to bottom */
#define AMX __attribute__((target("amx-tile,amx-bf16")))

INLINE void store_tile(const __m512i rows[16], bf16 *tile) {
    for (int i = 0; i < 16; i++)
        _mm512_store_si512((__m512i *)tile + i, rows[i]);
}

/* Load 16 rows of 32 elements, a register for each row; rows from `rows` on are zeros. */
INLINE void load_rows(const bf16 *matrix, int64_t row_stride, int64_t rows, __m512i registers[16]) {
    for (int i = 0; i < 16; i++)
        registers[i] = i < rows ? _mm512_loadu_si512(matrix + i * row_stride) : _mm512_setzero_si512();
}

/* Load 32 rows of 16 elements, a register for each pair of rows: elements of a column are side by side. Rows from
 * `rows` on are zeros. */
INLINE void pair_rows(const bf16 *matrix, int64_t row_stride, int64_t rows, __m512i pairs[16]) {
    for (int i = 0; i < 16; i++) {
        __m256i even =
            2 * i < rows ? _mm256_loadu_si256((const void *)(matrix + 2 * i * row_stride)) : _mm256_setzero_si256();
        __m256i odd = 2 * i + 1 < rows ? _mm256_loadu_si256((const void *)(matrix + (2 * i + 1) * row_stride))
                                       : _mm256_setzero_si256();
        pairs[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
}

/* Pack a matrix whose rows lie along the depth: A, or the transposed B.
 *
 * Each tile has 16 rows and 32 columns of the matrix; rows from `rows` on are zeros. The tile of a row and a column of
 * tiles becomes number tile_row * tiles_per_row + tile_column. With `transposed`, the result is tiles of B: the pairs of
 * elements of a row become a column. `row_stride`: elements from one row to the next. */
INLINE void pack_rows(const bf16 *matrix, int64_t row_stride, int64_t rows, int64_t tile_rows, int64_t tile_columns,
                      int64_t tiles_per_row, int transposed, bf16 *packed_tiles) {
    for (int64_t tile_row = 0; tile_row < tile_rows; tile_row++)
        for (int64_t tile_column = 0; tile_column < tile_columns; tile_column++) {
            __m512i registers[16];
            load_rows(matrix + 16 * tile_row * row_stride + 32 * tile_column, row_stride, rows - 16 * tile_row,
                      registers);
            if (transposed)
                transpose(registers);
            store_tile(registers, packed_tiles + (tile_row * tiles_per_row + tile_column) * TILE);
        }
}

/* Pack up to 32 rows of a matrix whose columns lie along the depth: B, or the transposed A.
 *
 * Each tile has 16 columns of the matrix, with pairs of rows interleaved; rows from `rows` on are zeros. With
 * `transposed`, the result is tiles of A. `tile_stride`: tiles from one packed tile to the next. */
INLINE void pack_pairs(const bf16 *matrix, int64_t row_stride, int64_t rows, int64_t tile_columns, int64_t tile_stride,
                       int transposed, bf16 *packed_tiles) {
    for (int64_t tile_column = 0; tile_column < tile_columns; tile_column++) {
        __m512i pairs[16];
        if (rows >= 32)
            pair_rows(matrix + 16 * tile_column, row_stride, 32, pairs);
        else
            pair_rows(matrix + 16 * tile_column, row_stride, rows, pairs);
        if (transposed)
            transpose(pairs);
        store_tile(pairs, packed_tiles + tile_column * tile_stride * TILE);
    }
}

/* How a block is written: rounded to bf16 after the bias is added; in fp32; or added to the output in fp32. */
enum { STORE_BF16, STORE_FP32, ADD_FP32 };

/* A block that is computed but not written yet. */
typedef struct {
    const float *sums; /* 48 x 32 */
    const bf16 *bias;  /* bias of the block's 32 columns, or NULL */
    void *target;      /* the block's first element in the output, bf16 or fp32 */
    int64_t row_stride, rows, written; /* written: number of rows that are already in the output */
} PendingBlock;

/* Write the next `count` rows of a block; the writes bypass the caches. */
INLINE void write_rows(PendingBlock *block, int64_t count, int kind) {
    for (int64_t end_row = min64(block->rows, block->written + count); block->written < end_row; block->written++) {
        const vec first_half = _mm512_load_ps(block->sums + block->written * 32),
                  second_half = _mm512_load_ps(block->sums + block->written * 32 + 16);
        if (kind == STORE_BF16) {
            __m256i first_bf16 = rounded(block->bias ? add(first_half, load_bf16(block->bias, 0xffff)) : first_half);
            __m256i second_bf16 =
                rounded(block->bias ? add(second_half, load_bf16(block->bias + 16, 0xffff)) : second_half);
            _mm512_stream_si512((void *)((bf16 *)block->target + block->written * block->row_stride),
                                _mm512_inserti64x4(_mm512_castsi256_si512(first_bf16), second_bf16, 1));
        } else {
            float *target_row = (float *)block->target + block->written * block->row_stride;
            if (kind == ADD_FP32) {
                _mm512_store_ps(target_row, add(first_half, _mm512_load_ps(target_row)));
                _mm512_store_ps(target_row + 16, add(second_half, _mm512_load_ps(target_row + 16)));
            } else {
                stream_fp32(target_row, first_half);
                stream_fp32(target_row + 16, second_half);
            }
        }
    }
}

AMX INLINE void zero_sums(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
}

/* Add the products of three tiles of A and two tiles of B to a block. Tile registers 0 to 5 hold the block of C; tiles
 * of A pass through register 6, tiles of B through register 7:
 *
 *                              b_left b_right
 *                             +------+------+
 *                             |  7   |  7   |  32 of the depth
 *              32 of depth    +------+------+
 *                  +------+   +------+------+
 *         a_top    |  6   |   |  0   |  1   |  16 rows
 *                  +------+   +------+------+
 *         a_middle |  6   |   |  2   |  3   |  16 rows
 *                  +------+   +------+------+
 *         a_bottom |  6   |   |  4   |  5   |  16 rows
 *                  +------+   +------+------+
 *                                16     16 columns
 *
 * Order of the loads, and the register of C to which the product of each pair is added:
 *
 *         register 7   b_left                        b_right
 *         register 6   a_top   a_middle   a_bottom   (stays)   a_middle   a_top
 *         register of C  0        2          4          5          3        1
 *
 * The second time, a_middle and a_top come from L1. `a_stride`: elements from a_top to a_middle. */
AMX INLINE void multiply_tiles(const bf16 *a_top, int64_t a_stride, const bf16 *b_left, const bf16 *b_right) {
    const bf16 *a_middle = a_top + a_stride, *a_bottom = a_middle + a_stride;
    _tile_loadd(7, b_left, 64);
    _tile_loadd(6, a_top, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, a_middle, 64);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, a_bottom, 64);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, b_right, 64);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(6, a_middle, 64);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(6, a_top, 64);
    _tile_dpbf16ps(1, 6, 7);
}

/* Store a block as 48 rows that are `row_stride` elements apart. */
AMX INLINE void store_sums(float *sums, int64_t row_stride) {
    _tile_stored(0, sums, row_stride * 4);
    _tile_stored(1, sums + 16, row_stride * 4);
    _tile_stored(2, sums + 16 * row_stride, row_stride * 4);
    _tile_stored(3, sums + 16 * row_stride + 16, row_stride * 4);
    _tile_stored(4, sums + 32 * row_stride, row_stride * 4);
    _tile_stored(5, sums + 32 * row_stride + 16, row_stride * 4);
}

/* Compute a block of 48 x 32 elements over `depth_tiles` tiles, and meanwhile write the previous block and prefetch the
 * next tiles of B into L2, `prefetch_lines` cache lines with each step. `a_stride`: tiles from one row of tiles to the
 * next. Returns the end of the prefetched part of B. */
AMX INLINE const char *multiply_block(const bf16 *a_tiles, int64_t a_stride, const bf16 *b_tiles, int64_t depth_tiles,
                                      const char *prefetched, int64_t prefetch_lines, float *sums,
                                      PendingBlock *previous, int kind) {
    const int64_t rows_per_step = ceil_div(16 * BLOCK_TILES, depth_tiles);
    zero_sums();
    for (int64_t i = 0; i < depth_tiles * TILE; i += TILE) {
        multiply_tiles(a_tiles + i, a_stride * TILE, b_tiles + i, b_tiles + depth_tiles * TILE + i);
        write_rows(previous, rows_per_step, kind);
        for (int64_t line = 0; line < prefetch_lines; line++, prefetched += 64)
            _mm_prefetch(prefetched, _MM_HINT_T1);
    }
    store_sums(sums, 32);
    return prefetched;
}

AMX INLINE void configure_tiles(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16]; /* bytes of a row of each tile register */
        uint8_t rows[16];
    } shapes
        __attribute__((aligned(64))) = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* Two blocks: a thread writes one while it computes the other. */
typedef struct {
    float sums[2][1024 / 2 * BLOCK_TILES] __attribute__((aligned(64)));
    PendingBlock previous; /* the block that is not written yet */
    int current;           /* index in `sums` for the next block */
} Blocks;

/* Compute `tile_rows` x `tile_columns` tiles of C from packed tiles of A and B, over `depth_tiles` tiles. `output` is the
 * first element of C, `rows` the number of its rows from there on. The last block stays in `blocks->previous`. */
AMX INLINE void multiply_blocks(Blocks *blocks, const bf16 *a_tiles, const bf16 *b_tiles, int64_t depth_tiles,
                                int64_t tile_rows, int64_t tile_columns, void *output, const bf16 *bias,
                                int64_t row_stride, int64_t rows, int kind) {
    const char *prefetched = (const char *)(b_tiles + tile_columns * depth_tiles * TILE);
    const int64_t block_rows = ceil_div(tile_rows, BLOCK_TILES),
                  prefetch_lines = ceil_div(16 * tile_columns, block_rows * (tile_columns / 2));
    for (int64_t i = 0; i < block_rows; i++)
        for (int64_t j = 0; j < tile_columns; j += 2) {
            float *sums = blocks->sums[blocks->current];
            prefetched = multiply_block(a_tiles + i * BLOCK_TILES * depth_tiles * TILE, depth_tiles,
                                        b_tiles + j * depth_tiles * TILE, depth_tiles, prefetched, prefetch_lines, sums,
                                        &blocks->previous, kind);
            write_rows(&blocks->previous, 16 * BLOCK_TILES, kind);
            int64_t offset = i * 16 * BLOCK_TILES * row_stride + j * 16;
            void *corner = kind == STORE_BF16 ? (void *)((bf16 *)output + offset) : (void *)((float *)output + offset);
            blocks->previous = (PendingBlock){sums,
                                              bias ? bias + j * 16 : bias,
                                              corner,
                                              row_stride,
                                              min64(16 * BLOCK_TILES, rows - i * 16 * BLOCK_TILES),
                                              0};
            blocks->current = !blocks->current;
        }
}
