/* Products of matrices in bf16 on AMX tiles (Intel 64 and IA-32 Architectures Software Developer's Manual,
 * volume 1, chapter 18).
 *
 * A product has blocks of 48 x 32 sums in six tiles. For these all factors are packed tile by tile, the right
 * ones with pairs of rows side by side. On their way are 5 tiles from L2 to 6 multiplications: with 32 x 32 sums
 * it would be one to each, and L2 would be what they wait for. Meanwhile sums of the block before are written.
 * Threads take the next piece when they have done one: where other machines use half of a core, equal shares
 * would wait for the slowest. A sum does not depend on who computes it. */

#define TILE 512 /* numbers of a tile of bf16: 16 rows of 32 */
#define HIGH 3   /* tiles of a block's rows */
#define AMX __attribute__((target("amx-tile,amx-bf16")))

INLINE void store_tile(const __m512i rows[16], bf16 *to) {
    for (int i = 0; i < 16; i++)
        _mm512_store_si512((__m512i *)to + i, rows[i]);
}

/* A register for each of 16 rows of 32 numbers, of which there are `rows`. */
INLINE void take_rows(const bf16 *from, int64_t columns, int64_t rows, __m512i taken[16]) {
    for (int i = 0; i < 16; i++)
        taken[i] = i < rows ? _mm512_loadu_si512(from + i * columns) : _mm512_setzero_si512();
}

/* A register for each two of 32 rows: the numbers of 16 columns, those of both rows side by side. */
INLINE void pair_rows(const bf16 *from, int64_t columns, int64_t rows, __m512i pairs[16]) {
    for (int i = 0; i < 16; i++) {
        __m256i even = 2 * i < rows ? _mm256_loadu_si256((const void *)(from + 2 * i * columns)) : _mm256_setzero_si256();
        __m256i odd = 2 * i + 1 < rows ? _mm256_loadu_si256((const void *)(from + (2 * i + 1) * columns)) : _mm256_setzero_si256();
        pairs[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
    }
}

/* Tiles of 16 rows and 32 columns each, `chunks` of them side by side, then those below, `beside` tiles behind; rows
 * behind `rows` are 0. Turned: of the matrix that is transposed, pairs of its rows side by side. `apart`: numbers
 * from row to row. */
INLINE void pack_rows(const bf16 *from, int64_t apart, int64_t rows, int64_t tiles, int64_t chunks, int64_t beside,
                      int turned, bf16 *to) {
    for (int64_t tile = 0; tile < tiles; tile++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            __m512i taken[16];
            take_rows(from + 16 * tile * apart + 32 * chunk, apart, rows - 16 * tile, taken);
            if (turned)
                transpose(taken);
            store_tile(taken, to + (tile * beside + chunk) * TILE);
        }
}

/* Tiles of `rows` <= 32 rows and 16 columns each, pairs of rows side by side. Turned: of 16 rows and 32 columns
 * each, those of the matrix that is transposed. `apart`: tiles from one to the next. */
INLINE void pack_pairs(const bf16 *from, int64_t columns, int64_t rows, int64_t tiles, int64_t apart, int turned, bf16 *to) {
    for (int64_t tile = 0; tile < tiles; tile++) {
        __m512i pairs[16];
        if (rows >= 32)
            pair_rows(from + 16 * tile, columns, 32, pairs);
        else
            pair_rows(from + 16 * tile, columns, rows, pairs);
        if (turned)
            transpose(pairs);
        store_tile(pairs, to + tile * apart * TILE);
    }
}

/* How the sums of a block go to their places: rounded, after a bias or none; in fp32; or added to what is there. */
enum { ROUND, SET, ADD };

typedef struct {
    const float *sums; /* 48 x 32 */
    const bf16 *bias;
    void *to; /* of bf16 or fp32 */
    int64_t columns, rows, done;
} Output;

/* The next `count` rows, past the caches. */
INLINE void put(Output *a, int64_t count, int kind) {
    for (int64_t end = least(a->rows, a->done + count); a->done < end; a->done++) {
        const vec left = _mm512_load_ps(a->sums + a->done * 32), right = _mm512_load_ps(a->sums + a->done * 32 + 16);
        if (kind == ROUND) {
            __m256i low = rounded(a->bias ? add(left, load_bf16(a->bias, 0xffff)) : left);
            __m256i high = rounded(a->bias ? add(right, load_bf16(a->bias + 16, 0xffff)) : right);
            _mm512_stream_si512((void *)((bf16 *)a->to + a->done * a->columns), _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
        } else {
            float *to = (float *)a->to + a->done * a->columns;
            if (kind == ADD) {
                _mm512_store_ps(to, add(left, _mm512_load_ps(to)));
                _mm512_store_ps(to + 16, add(right, _mm512_load_ps(to + 16)));
            } else {
                stream_fp32(to, left);
                stream_fp32(to + 16, right);
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

/* Three left tiles, `apart` from each other, times two right ones. Left tiles pass through tile register 6, right ones
 * through 7, and the sums of a block are in registers 0 to 5:
 *
 *                              right   beside
 *                             +------+------+
 *                             |  7   |  7   |  32 deep
 *                  32 deep    +------+------+
 *                  +------+   +------+------+
 *         left     |  6   |   |  0   |  1   |  16 rows
 *                  +------+   +------+------+
 *         middle   |  6   |   |  2   |  3   |  16
 *                  +------+   +------+------+
 *         below    |  6   |   |  4   |  5   |  16
 *                  +------+   +------+------+
 *                                16     16 columns
 */
AMX INLINE void add_products(const bf16 *left, int64_t apart, const bf16 *right, const bf16 *beside) {
    const bf16 *middle = left + apart, *below = middle + apart;
    _tile_loadd(7, right, 64);
    _tile_loadd(6, left, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, middle, 64);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, below, 64);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, beside, 64);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(6, middle, 64);
    _tile_dpbf16ps(3, 6, 7);
    _tile_loadd(6, left, 64);
    _tile_dpbf16ps(1, 6, 7);
}

/* To 48 rows of `columns`. */
AMX INLINE void store_sums(float *sums, int64_t columns) {
    _tile_stored(0, sums, columns * 4);
    _tile_stored(1, sums + 16, columns * 4);
    _tile_stored(2, sums + 16 * columns, columns * 4);
    _tile_stored(3, sums + 16 * columns + 16, columns * 4);
    _tile_stored(4, sums + 32 * columns, columns * 4);
    _tile_stored(5, sums + 32 * columns + 16, columns * 4);
}

/* 48 x 32 sums of `chunks` tiles along the sum, left ones `apart` tiles from those below; the next tiles of the right
 * factor come into L2 meanwhile, `lines` at a time, and `before` goes to its place. */
AMX INLINE const char *multiply(const bf16 *left, int64_t apart, const bf16 *right, int64_t chunks, const char *next,
                                int64_t lines, float *sums, Output *before, int kind) {
    const int64_t rows = parts(16 * HIGH, chunks);
    zero_sums();
    for (int64_t i = 0; i < chunks * TILE; i += TILE) {
        add_products(left + i, apart * TILE, right + i, right + chunks * TILE + i);
        put(before, rows, kind);
        for (int64_t line = 0; line < lines; line++, next += 64)
            _mm_prefetch(next, _MM_HINT_T1);
    }
    store_sums(sums, 32);
    return next;
}

AMX INLINE void configure_tiles(void) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16]; /* of a row */
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}

/* What a thread writes while it computes. */
typedef struct {
    float sums[2][1024 / 2 * HIGH] __attribute__((aligned(64)));
    Output before;
    int turn;
} Blocks;

/* `down` x `across` tiles of sums from packed factors, `chunks` tiles along the sum; the first sum is that of `to`,
 * which has `columns` and `rows` from there on. `next`: what follows the right factors. */
AMX INLINE void multiply_blocks(Blocks *blocks, const bf16 *left, const bf16 *right, int64_t chunks, int64_t down,
                                int64_t across, void *to, const bf16 *bias, int64_t columns, int64_t rows, int kind) {
    const char *next = (const char *)(right + across * chunks * TILE);
    const int64_t high = parts(down, HIGH), lines = parts(16 * across, high * (across / 2));
    for (int64_t i = 0; i < high; i++)
        for (int64_t j = 0; j < across; j += 2) {
            float *sums = blocks->sums[blocks->turn];
            next = multiply(left + i * HIGH * chunks * TILE, chunks, right + j * chunks * TILE, chunks, next, lines, sums,
                            &blocks->before, kind);
            put(&blocks->before, 16 * HIGH, kind);
            int64_t place = i * 16 * HIGH * columns + j * 16;
            void *here = kind == ROUND ? (void *)((bf16 *)to + place) : (void *)((float *)to + place);
            blocks->before = (Output){sums, bias ? bias + j * 16 : bias, here, columns, least(16 * HIGH, rows - i * 16 * HIGH), 0};
            blocks->turn = !blocks->turn;
        }
}
