/* 16 numbers in two registers of AVX2. */

typedef struct {
    __m256 low, high;
} vec;
typedef struct {
    __m256i low, high;
} words; /* 8 numbers of 64 bits */

#define EACH(function, a, b) ((vec){function((a).low, (b).low), function((a).high, (b).high)})
#define EACH3(function, a, b, c) \
    ((vec){function((a).low, (b).low, (c).low), function((a).high, (b).high, (c).high)})

INLINE vec zeros(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vec all(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec add(vec a, vec b) { return EACH(_mm256_add_ps, a, b); }
INLINE vec sub(vec a, vec b) { return EACH(_mm256_sub_ps, a, b); }
INLINE vec mul(vec a, vec b) { return EACH(_mm256_mul_ps, a, b); }
INLINE vec quotient(vec a, vec b) { return EACH(_mm256_div_ps, a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return EACH3(_mm256_fmadd_ps, a, b, c); }      /* a b + c */
INLINE vec neg_mul_add(vec a, vec b, vec c) { return EACH3(_mm256_fnmadd_ps, a, b, c); } /* c - a b */
INLINE vec smaller(vec a, vec b) { return EACH(_mm256_min_ps, a, b); }
INLINE vec magnitude(vec x) { return EACH(_mm256_andnot_ps, all(-0.0f), x); }
INLINE vec square_root(vec x) { return (vec){_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
INLINE vec round_down(vec x) { return (vec){_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)}; }
INLINE vec fraction(vec x) { return sub(x, round_down(x)); }
INLINE vec nearly_inverse(vec x) { return quotient(all(1.0f), x); }

INLINE __m256 scaled_half(__m256 y, __m256 x) {
    const __m256 least = _mm256_set1_ps(-126.0f);
    __m256i exponent = _mm256_cvtps_epi32(_mm256_floor_ps(_mm256_max_ps(x, least)));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), _mm256_mul_ps(y, power));
}

/* y 2^x, with x rounded down; 0 where x < -126, and NaN where y is. */
INLINE vec scaled(vec y, vec x) { return EACH(scaled_half, y, x); }

/* All bits of the lanes whose bit is set. */
INLINE __m256 spread(unsigned some) {
    const __m256i bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(some), bits), bits));
}

INLINE lanes negative(vec x) {
    __m256 zero = _mm256_setzero_ps();
    unsigned low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, zero, _CMP_LT_OS));
    return low | _mm256_movemask_ps(_mm256_cmp_ps(x.high, zero, _CMP_LT_OS)) << 8;
}

/* `a` in some lanes, `b` in the others. */
INLINE vec choose(lanes some, vec a, vec b) {
    return (vec){_mm256_blendv_ps(b.low, a.low, spread(some)), _mm256_blendv_ps(b.high, a.high, spread(some >> 8))};
}

INLINE vec add_some(lanes some, vec sum, vec x) {
    return some == 0xffff ? add(sum, x) : choose(some, add(sum, x), sum);
}

INLINE vec larger_some(lanes some, vec a, vec b) {
    vec larger = EACH(_mm256_max_ps, a, b);
    return some == 0xffff ? larger : choose(some, larger, a);
}

INLINE float sum_of(vec x) {
    __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE float largest_in(vec x) {
    __m256 eight = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

INLINE float first_of(vec x) { return _mm256_cvtss_f32(x.low); }

INLINE vec load_fp32(const float *x, lanes some) {
    if (some == 0xffff)
        return (vec){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    __m256i low = _mm256_castps_si256(spread(some)), high = _mm256_castps_si256(spread(some >> 8));
    return (vec){_mm256_maskload_ps(x, low), _mm256_maskload_ps(x + 8, high)};
}

INLINE void store_fp32(float *x, lanes some, vec values) {
    if (some == 0xffff) {
        _mm256_storeu_ps(x, values.low);
        _mm256_storeu_ps(x + 8, values.high);
    } else {
        _mm256_maskstore_ps(x, _mm256_castps_si256(spread(some)), values.low);
        _mm256_maskstore_ps(x + 8, _mm256_castps_si256(spread(some >> 8)), values.high);
    }
}

/* To a cache line, past the caches. */
INLINE void stream_fp32(float *x, vec values) {
    _mm256_stream_ps(x, values.low);
    _mm256_stream_ps(x + 8, values.high);
}

INLINE __m256 widened(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* AVX2 masks numbers of 32 bits only: some of 16 bits go through an array. `some` is those before one. */
INLINE vec load_bf16(const bf16 *x, lanes some) {
    bf16 rest[16] = {0};
    if (some != 0xffff) {
        for (int i = 0; some >> i & 1; i++)
            rest[i] = x[i];
        x = rest;
    }
    return (vec){widened(_mm_loadu_si128((const void *)x)), widened(_mm_loadu_si128((const void *)(x + 8)))};
}

INLINE __m256i rounded(__m256 values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc0), nan);
}

INLINE void store_bf16(bf16 *x, lanes some, vec values) {
    /* packs in each half of the registers */
    __m256i mixed = _mm256_packus_epi32(rounded(values.low), rounded(values.high));
    __m256i halves = _mm256_permute4x64_epi64(mixed, 0xd8);
    if (some == 0xffff) {
        _mm256_storeu_si256((void *)x, halves);
        return;
    }
    bf16 rest[16];
    _mm256_storeu_si256((void *)rest, halves);
    for (int i = 0; some >> i & 1; i++)
        x[i] = rest[i];
}

/* start, start + step, start + 2 step, ... */
INLINE words counting(uint64_t start, uint64_t step) {
    uint64_t numbers[8];
    for (int i = 0; i < 8; i++)
        numbers[i] = start + i * step;
    return (words){_mm256_loadu_si256((const void *)numbers), _mm256_loadu_si256((const void *)(numbers + 4))};
}

INLINE words plus(words z, uint64_t by) {
    const __m256i all = _mm256_set1_epi64x(by);
    return (words){_mm256_add_epi64(z.low, all), _mm256_add_epi64(z.high, all)};
}

/* The low 64 bits of the product: of its four parts the highest is not among them. */
INLINE __m256i times_half(__m256i z, uint64_t by) {
    const __m256i low = _mm256_set1_epi64x(by), high = _mm256_set1_epi64x(by >> 32);
    __m256i mixed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(z, 32), low), _mm256_mul_epu32(z, high));
    return _mm256_add_epi64(_mm256_mul_epu32(z, low), _mm256_slli_epi64(mixed, 32));
}

INLINE words times(words z, uint64_t by) { return (words){times_half(z.low, by), times_half(z.high, by)}; }
#define XOR_SHIFTED_HALF(z, by) _mm256_xor_si256(z, _mm256_srli_epi64(z, by))
#define XOR_SHIFTED(z, by) ((words){XOR_SHIFTED_HALF((z).low, by), XOR_SHIFTED_HALF((z).high, by)})

/* Of the 32 numbers of 16 bits, those that are not less. */
INLINE uint32_t at_least(words z, int16_t level) {
    const __m256i all = _mm256_set1_epi16(level);
    __m256i less = _mm256_packs_epi16(_mm256_cmpgt_epi16(all, z.low), _mm256_cmpgt_epi16(all, z.high));
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(less, 0xd8));
}

/* See avx512.h; of 8 x 8. */
#define SQUARE 8
INLINE void turn_square(const uint32_t *from, int64_t apart, int64_t rows, uint32_t *to, int64_t wide) {
    __m256 x[8], y[8];
    for (int i = 0; i < 8; i++)
        x[i] = i < rows ? _mm256_loadu_ps((const float *)(from + i * apart)) : _mm256_setzero_ps();
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps((float *)(to + i * wide), _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps((float *)(to + (i + 4) * wide), _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
}
