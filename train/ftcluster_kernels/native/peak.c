#include "vectors.h"

/* What a core can do at most: multiply-adds of registers, which wait for nothing. bench/peak.py puts what products of
 * matrices reach beside it. */

enum { FP32_SUMS, BF16_PAIRS, TILES }; /* bench/peak.py has the same */

typedef struct {
    uint64_t kind;
    const float *numbers; /* 1,024, other than 0: zeros take less power */
    float *sums;          /* 1,024 for each thread, so that nothing is left out */
    int64_t rounds;
} Peak;

/* As many sums as hide the time that one takes. */
#define SUMS 12
#define ALL_SUMS(...)                  \
    for (int i = 0; i < SUMS; i++) {   \
        __VA_ARGS__                    \
    }

static void fp32_sums(const Peak *a, float *sums) {
#ifdef __AVX512F__
    typedef __m512 reg;
#define MULTIPLY_ADD _mm512_fmadd_ps
#else
    typedef __m256 reg;
#define MULTIPLY_ADD _mm256_fmadd_ps
#endif
    reg sum[SUMS], left = *(const reg *)a->numbers, right = *(const reg *)(a->numbers + 16);
    ALL_SUMS(sum[i] = *(const reg *)(a->numbers + 32 + 16 * i);)
    for (int64_t round = 0; round < a->rounds; round++) {
#pragma GCC unroll 12
        ALL_SUMS(sum[i] = MULTIPLY_ADD(left, right, sum[i]);)
        __asm__ volatile("" : "+v"(left), "+v"(right)); /* each round is its own */
    }
    ALL_SUMS(*(reg *)(sums + 16 * i) = sum[i];)
}

#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)

__attribute__((target("avx512bf16"))) static void bf16_pairs(const Peak *a, float *sums) {
    __m512 sum[SUMS];
    __m512bh left = *(const __m512bh *)a->numbers, right = *(const __m512bh *)(a->numbers + 16);
    ALL_SUMS(sum[i] = _mm512_loadu_ps(a->numbers + 32 + 16 * i);)
    for (int64_t round = 0; round < a->rounds; round++) {
#pragma GCC unroll 12
        ALL_SUMS(sum[i] = _mm512_dpbf16_ps(sum[i], left, right);)
        __asm__ volatile("" : "+v"(left), "+v"(right));
    }
    ALL_SUMS(_mm512_storeu_ps(sums + 16 * i, sum[i]);)
}

__attribute__((target("amx-tile,amx-bf16"))) static void tiles(const Peak *a, float *sums) {
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes __attribute__((aligned(64))) = {1, 0, {0}, {64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, a->numbers, 64);
    _tile_loadd(5, a->numbers + 256, 64);
    for (int64_t round = 0; round < a->rounds; round++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 5, 4);
        _tile_dpbf16ps(3, 5, 4);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    _tile_release();
}

#endif

static void peak_loop(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Peak *a = pointer;
    float *sums = a->sums + 1024 * thread;
#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
    if (a->kind == TILES)
        tiles(a, sums);
    if (a->kind == BF16_PAIRS)
        bf16_pairs(a, sums);
#endif
    if (a->kind == FP32_SUMS)
        fp32_sums(a, sums);
}

EXPORT void peak(uint64_t kind, const float *numbers, float *sums, uint64_t rounds, int threads) {
    Peak arguments = {kind, numbers, sums, rounds};
    in_shares(threads, peak_loop, &arguments, threads);
}
