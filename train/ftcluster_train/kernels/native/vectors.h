/* What the loops of this folder have in common, for CPUs with AVX-512 (F, BW, DQ, VL).
 *
 * ../../../hatch_build.py compiles them into one library, which ../avx512.py loads; the modules that
 * call a loop say what it does. Numbers are bf16 (uint16_t) or fp32 in memory and fp32 in between;
 * results are rounded to the nearest, as torch rounds. No function of a library is called but those of
 * OpenMP that torch has loaded: so there is one pool of threads, and the files work with any C library.
 */

#include <immintrin.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint16_t bf16;

/* Of `count` pieces those from `begin` on, by thread number `thread`. */
typedef void (*Loop)(const void *arguments, int64_t begin, int64_t end, int thread);

void in_threads(int threads, Loop loop, const void *arguments, int64_t count);

static inline __mmask16 first(int64_t left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

static inline __m512 widened(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

static inline __m256i rounded(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(bits, 16), nan, _mm512_set1_epi32(0x7fc0)));
}

/* Masked stores are slow on some CPUs, and most registers are whole. */
static inline __m512 load(const bf16 *x, __mmask16 some) {
    return widened(some == 0xffff ? _mm256_loadu_si256((const void *)x) : _mm256_maskz_loadu_epi16(some, x));
}

static inline void store(bf16 *x, __mmask16 some, __m512 values) {
    if (some == 0xffff)
        _mm256_storeu_si256((void *)x, rounded(values));
    else
        _mm256_mask_storeu_epi16(x, some, rounded(values));
}

static inline __m512 load_fp32(const float *x, __mmask16 some) {
    return some == 0xffff ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(some, x);
}

static inline void store_fp32(float *x, __mmask16 some, __m512 values) {
    if (some == 0xffff)
        _mm512_storeu_ps(x, values);
    else
        _mm512_mask_storeu_ps(x, some, values);
}

/* 2^x for x <= 0, to 2 units in the last place near 0, and 0 below 2^-126: a polynomial on the fraction of x,
 * fitted for the smallest largest relative error. */
static inline __m512 power_of_two(__m512 x) {
    __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ); /* NaN stays */
    __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 y = _mm512_set1_ps(0.00187758f);
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00898934f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.05582632f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24015361f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931531f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.99999994f));
    return _mm512_maskz_scalef_ps(normal, y, x); /* rounds x down */
}

static inline __m512 exponential(__m512 x) { return power_of_two(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f))); }

/* in all lanes */
static inline __m512 largest_of(const bf16 *values, int64_t columns) {
    __m512 largest = _mm512_set1_ps(-__builtin_inff());
    for (int64_t i = 0; i < columns; i += 16) {
        __mmask16 some = first(columns - i);
        largest = _mm512_mask_max_ps(largest, some, largest, load(values + i, some));
    }
    return _mm512_set1_ps(_mm512_reduce_max_ps(largest));
}
