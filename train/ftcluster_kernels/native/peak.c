#include "vectors.h"

/* Measures the peak rate of a core: multiply-adds between registers, without dependencies that stall the core.
 * bench/peak.py compares this rate with the rate of matrix multiplications. */

enum { FP32_SUMS, BF16_PAIRS, TILES }; /* bench/peak.py uses the same numbers */

typedef struct {
    uint64_t kind;
    const float *values; /* 1,024 nonzero values, because zeros would take less power */
    float *sums;          /* 1,024 results for each thread; without results, the compiler would remove the loops */
    int64_t rounds;
} Peak;

/* The number of independent sums, enough to hide the latency of an instruction. */
#define SUMS 12
#define ALL_SUMS(...)                  \
    for (int i = 0; i < SUMS; i++) {   \
        __VA_ARGS__                    \
    }

static void fp32_sums(const Peak *args, float *sums) {
#ifdef __AVX512F__
    typedef __m512 simd_register;
#define MULTIPLY_ADD _mm512_fmadd_ps
#else
    typedef __m256 simd_register;
#define MULTIPLY_ADD _mm256_fmadd_ps
#endif
    simd_register accumulators[SUMS], first_factor = *(const simd_register *)args->values,
                                      second_factor = *(const simd_register *)(args->values + 16);
    ALL_SUMS(accumulators[i] = *(const simd_register *)(args->values + 32 + 16 * i);)
    for (int64_t round = 0; round < args->rounds; round++) {
#pragma GCC unroll 12
        ALL_SUMS(accumulators[i] = MULTIPLY_ADD(first_factor, second_factor, accumulators[i]);)
        __asm__ volatile("" : "+v"(first_factor), "+v"(second_factor)); /* keeps the compiler from merging rounds */
    }
    ALL_SUMS(*(simd_register *)(sums + 16 * i) = accumulators[i];)
}

#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)

__attribute__((target("avx512bf16"))) static void bf16_pairs(const Peak *args, float *sums) {
    __m512 accumulators[SUMS];
    __m512bh first_factor = *(const __m512bh *)args->values, second_factor = *(const __m512bh *)(args->values + 16);
    ALL_SUMS(accumulators[i] = _mm512_loadu_ps(args->values + 32 + 16 * i);)
    for (int64_t round = 0; round < args->rounds; round++) {
#pragma GCC unroll 12
        ALL_SUMS(accumulators[i] = _mm512_dpbf16_ps(accumulators[i], first_factor, second_factor);)
        __asm__ volatile("" : "+v"(first_factor), "+v"(second_factor));
    }
    ALL_SUMS(_mm512_storeu_ps(sums + 16 * i, accumulators[i]);)
}

__attribute__((target("amx-tile,amx-bf16"))) static void tiles(const Peak *args, float *sums) {
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
    _tile_loadd(4, args->values, 64);
    _tile_loadd(5, args->values + 256, 64);
    for (int64_t round = 0; round < args->rounds; round++) {
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
    const Peak *args = pointer;
    float *sums = args->sums + 1024 * thread;
#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
    if (args->kind == TILES)
        tiles(args, sums);
    if (args->kind == BF16_PAIRS)
        bf16_pairs(args, sums);
#endif
    if (args->kind == FP32_SUMS)
        fp32_sums(args, sums);
}

EXPORT void peak(uint64_t kind, const float *values, float *sums, uint64_t rounds, int threads) {
    Peak arguments = {kind, values, sums, rounds};
    in_shares(threads, peak_loop, &arguments, threads);
}
