/* 16 elements in two registers of AVX2. */

typedef struct {
    __m256 low, high;
} vec;
typedef struct {
    __m256i low, high;
} u64x8; /* 8 integers of 64 bits */

#define EACH(function, a, b) ((vec){function((a).low, (b).low), function((a).high, (b).high)})
#define EACH3(function, a, b, c) \
    ((vec){function((a).low, (b).low, (c).low), function((a).high, (b).high, (c).high)})

INLINE vec zeros(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vec broadcast(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vec add(vec a, vec b) { return EACH(_mm256_add_ps, a, b); }
INLINE vec sub(vec a, vec b) { return EACH(_mm256_sub_ps, a, b); }
INLINE vec mul(vec a, vec b) { return EACH(_mm256_mul_ps, a, b); }
INLINE vec quotient(vec a, vec b) { return EACH(_mm256_div_ps, a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return EACH3(_mm256_fmadd_ps, a, b, c); }      /* a b + c */
INLINE vec neg_mul_add(vec a, vec b, vec c) { return EACH3(_mm256_fnmadd_ps, a, b, c); } /* c - a b */
INLINE vec smaller(vec a, vec b) { return EACH(_mm256_min_ps, a, b); }
INLINE vec magnitude(vec x) { return EACH(_mm256_andnot_ps, broadcast(-0.0f), x); }
INLINE vec square_root(vec x) { return (vec){_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
INLINE vec round_down(vec x) { return (vec){_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)}; }
INLINE vec fraction(vec x) { return sub(x, round_down(x)); }
INLINE vec nearly_inverse(vec x) { return quotient(broadcast(1.0f), x); }

INLINE __m256 scaled_half(__m256 y, __m256 x) {
    const __m256 least = _mm256_set1_ps(-126.0f);
    __m256i exponent = _mm256_cvtps_epi32(_mm256_floor_ps(_mm256_max_ps(x, least)));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, least, _CMP_LT_OQ), _mm256_mul_ps(y, power));
}

/* Return y 2^floor(x): 0 if x < -126, and NaN if y is NaN. */
INLINE vec scaled(vec y, vec x) { return EACH(scaled_half, y, x); }

/* Return a register with all bits of the active lanes set. */
INLINE __m256 spread(unsigned active) {
    const __m256i bits = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(active), bits), bits));
}

INLINE lanes negative(vec x) {
    __m256 zero = _mm256_setzero_ps();
    unsigned low = _mm256_movemask_ps(_mm256_cmp_ps(x.low, zero, _CMP_LT_OS));
    return low | _mm256_movemask_ps(_mm256_cmp_ps(x.high, zero, _CMP_LT_OS)) << 8;
}

INLINE int all_bits_zero(vec a, vec b, vec c) {
    vec either = EACH(_mm256_or_ps, EACH(_mm256_or_ps, a, b), c);
    __m256 bits = _mm256_or_ps(either.low, either.high);
    return _mm256_testz_si256(_mm256_castps_si256(bits), _mm256_castps_si256(bits));
}

/* Return the elements of `a` in active lanes and the elements of `b` in other lanes. */
INLINE vec choose(lanes active, vec a, vec b) {
    return (vec){_mm256_blendv_ps(b.low, a.low, spread(active)), _mm256_blendv_ps(b.high, a.high, spread(active >> 8))};
}

INLINE vec add_active(lanes active, vec sum, vec x) {
    return active == 0xffff ? add(sum, x) : choose(active, add(sum, x), sum);
}

INLINE vec larger_active(lanes active, vec a, vec b) {
    vec larger = EACH(_mm256_max_ps, a, b);
    return active == 0xffff ? larger : choose(active, larger, a);
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

INLINE vec load_fp32(const float *x, lanes active) {
    if (active == 0xffff)
        return (vec){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    __m256i low = _mm256_castps_si256(spread(active)), high = _mm256_castps_si256(spread(active >> 8));
    return (vec){_mm256_maskload_ps(x, low), _mm256_maskload_ps(x + 8, high)};
}

INLINE void store_fp32(float *x, lanes active, vec values) {
    if (active == 0xffff) {
        _mm256_storeu_ps(x, values.low);
        _mm256_storeu_ps(x + 8, values.high);
    } else {
        _mm256_maskstore_ps(x, _mm256_castps_si256(spread(active)), values.low);
        _mm256_maskstore_ps(x + 8, _mm256_castps_si256(spread(active >> 8)), values.high);
    }
}

/* Store to a whole cache line, bypassing the caches. */
INLINE void stream_fp32(float *x, vec values) {
    _mm256_stream_ps(x, values.low);
    _mm256_stream_ps(x + 8, values.high);
}

INLINE __m256 widened(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* AVX2 can mask only elements of 32 bits, so a partly active register of 16-bit elements goes through an array. The
 * active lanes must be the first ones. */
INLINE vec load_bf16(const bf16 *x, lanes active) {
    bf16 padded[16] = {0};
    if (active != 0xffff) {
        for (int i = 0; active >> i & 1; i++)
            padded[i] = x[i];
        x = padded;
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

INLINE void store_bf16(bf16 *x, lanes active, vec values) {
    /* the pack instruction works on each half of a register separately */
    __m256i packed = _mm256_packus_epi32(rounded(values.low), rounded(values.high));
    __m256i halves = _mm256_permute4x64_epi64(packed, 0xd8);
    if (active == 0xffff) {
        _mm256_storeu_si256((void *)x, halves);
        return;
    }
    bf16 rounded_values[16];
    _mm256_storeu_si256((void *)rounded_values, halves);
    for (int i = 0; active >> i & 1; i++)
        x[i] = rounded_values[i];
}

/* Return start, start + step, start + 2 step, ... */
INLINE u64x8 counting(uint64_t start, uint64_t step) {
    uint64_t integers[8];
    for (int i = 0; i < 8; i++)
        integers[i] = start + i * step;
    return (u64x8){_mm256_loadu_si256((const void *)integers), _mm256_loadu_si256((const void *)(integers + 4))};
}

INLINE u64x8 plus(u64x8 z, uint64_t by) {
    const __m256i addends = _mm256_set1_epi64x(by);
    return (u64x8){_mm256_add_epi64(z.low, addends), _mm256_add_epi64(z.high, addends)};
}

/* Return the low 64 bits of the product; the product of both high halves does not contribute to them. */
INLINE __m256i times_half(__m256i z, uint64_t by) {
    const __m256i low = _mm256_set1_epi64x(by), high = _mm256_set1_epi64x(by >> 32);
    __m256i mixed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(z, 32), low), _mm256_mul_epu32(z, high));
    return _mm256_add_epi64(_mm256_mul_epu32(z, low), _mm256_slli_epi64(mixed, 32));
}

INLINE u64x8 times(u64x8 z, uint64_t by) { return (u64x8){times_half(z.low, by), times_half(z.high, by)}; }
#define XOR_SHIFTED_HALF(z, by) _mm256_xor_si256(z, _mm256_srli_epi64(z, by))
#define XOR_SHIFTED(z, by) ((u64x8){XOR_SHIFTED_HALF((z).low, by), XOR_SHIFTED_HALF((z).high, by)})

/* Return a mask with a bit for each of the 32 integers of 16 bits: 1 if the integer is at least `level`. */
INLINE uint32_t at_least(u64x8 z, int16_t level) {
    const __m256i levels = _mm256_set1_epi16(level);
    __m256i less = _mm256_packs_epi16(_mm256_cmpgt_epi16(levels, z.low), _mm256_cmpgt_epi16(levels, z.high));
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(less, 0xd8));
}

/* Transpose 8 x 8 elements; the arguments are as in avx512.h. */
#define SQUARE 8
INLINE void transpose_square(const uint32_t *matrix, int64_t row_stride, int64_t rows, uint32_t *transposed,
                             int64_t transposed_stride) {
    __m256 x[8], y[8];
    for (int i = 0; i < 8; i++)
        x[i] = i < rows ? _mm256_loadu_ps((const float *)(matrix + i * row_stride)) : _mm256_setzero_ps();
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
        _mm256_storeu_ps((float *)(transposed + i * transposed_stride), _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
    for (int i = 0; i < 4; i++)
        _mm256_storeu_ps((float *)(transposed + (i + 4) * transposed_stride),
                         _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
}
