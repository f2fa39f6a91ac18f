/* 16 elements in a register of AVX-512. */

typedef __m512 vec;
typedef __m512i u64x8; /* 8 integers of 64 bits */

INLINE vec zeros(void) { return _mm512_setzero_ps(); }
INLINE vec broadcast(float x) { return _mm512_set1_ps(x); }
INLINE vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec quotient(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec mul_add(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }      /* a b + c */
INLINE vec neg_mul_add(vec a, vec b, vec c) { return _mm512_fnmadd_ps(a, b, c); } /* c - a b */
INLINE vec smaller(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec magnitude(vec x) { return _mm512_abs_ps(x); }
INLINE vec square_root(vec x) { return _mm512_sqrt_ps(x); }
INLINE vec fraction(vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vec round_down(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }

/* Return 1 / x with a relative error of 2^-22. */
INLINE vec nearly_inverse(vec x) {
    vec y = _mm512_rcp14_ps(x);
    return mul(y, neg_mul_add(x, y, broadcast(2.0f)));
}

/* Return y 2^floor(x): 0 if x < -126, and NaN if y is NaN. */
INLINE vec scaled(vec y, vec x) {
    __mmask16 is_normal = _mm512_cmp_ps_mask(x, broadcast(-126.0f), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(is_normal, y, x);
}

INLINE lanes negative(vec x) { return _mm512_cmp_ps_mask(x, zeros(), _CMP_LT_OS); }

INLINE int all_bits_zero(vec a, vec b, vec c) {
    __m512i bits = _mm512_castps_si512(_mm512_or_ps(_mm512_or_ps(a, b), c));
    return _mm512_test_epi32_mask(bits, bits) == 0;
}

/* Return the elements of `a` in active lanes and the elements of `b` in other lanes. */
INLINE vec choose(lanes active, vec a, vec b) { return _mm512_mask_mov_ps(b, active, a); }
INLINE vec add_active(lanes active, vec sum, vec x) { return _mm512_mask_add_ps(sum, active, sum, x); }
INLINE vec larger_active(lanes active, vec a, vec b) { return _mm512_mask_max_ps(a, active, a, b); }

INLINE float sum_of(vec x) { return _mm512_reduce_add_ps(x); }
INLINE float largest_in(vec x) { return _mm512_reduce_max_ps(x); }
INLINE float first_of(vec x) { return _mm512_cvtss_f32(x); }

/* Unmasked loads and stores serve the common case, because masked ones are slow on some CPUs. */
INLINE vec load_fp32(const float *x, lanes active) {
    return active == 0xffff ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(active, x);
}

INLINE void store_fp32(float *x, lanes active, vec values) {
    if (active == 0xffff)
        _mm512_storeu_ps(x, values);
    else
        _mm512_mask_storeu_ps(x, active, values);
}

/* Store to a whole cache line, bypassing the caches. */
INLINE void stream_fp32(float *x, vec values) { _mm512_stream_ps(x, values); }

INLINE vec load_bf16(const bf16 *x, lanes active) {
    __m256i halves = active == 0xffff ? _mm256_loadu_si256((const void *)x) : _mm256_maskz_loadu_epi16(active, x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

INLINE __m256i rounded(vec values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(bits, 16), nan, _mm512_set1_epi32(0x7fc0)));
}

INLINE void store_bf16(bf16 *x, lanes active, vec values) {
    if (active == 0xffff)
        _mm256_storeu_si256((void *)x, rounded(values));
    else
        _mm256_mask_storeu_epi16(x, active, rounded(values));
}

/* Return start, start + step, start + 2 step, ... */
INLINE u64x8 counting(uint64_t start, uint64_t step) {
    const __m512i integers = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_add_epi64(_mm512_mullo_epi64(integers, _mm512_set1_epi64(step)), _mm512_set1_epi64(start));
}

INLINE u64x8 plus(u64x8 z, uint64_t by) { return _mm512_add_epi64(z, _mm512_set1_epi64(by)); }
INLINE u64x8 times(u64x8 z, uint64_t by) { return _mm512_mullo_epi64(z, _mm512_set1_epi64(by)); }
#define XOR_SHIFTED(z, by) _mm512_xor_si512(z, _mm512_srli_epi64(z, by))

/* Return a mask with a bit for each of the 32 integers of 16 bits: 1 if the integer is at least `level`. */
INLINE uint32_t at_least(u64x8 z, int16_t level) { return _mm512_cmpge_epi16_mask(z, _mm512_set1_epi16(level)); }

/* Transpose 16 x 16 elements of 32 bits. */
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

/* Transpose a square of 16 x 16 elements of 32 bits. Rows of `matrix` are `row_stride` elements apart; rows at and
 * after index `rows` count as zeros. Rows of `transposed` are `transposed_stride` elements apart. The function stores them
 * in order, so with a stride below 16 each row overwrites the end of the previous row. */
#define SQUARE 16
INLINE void transpose_square(const uint32_t *matrix, int64_t row_stride, int64_t rows, uint32_t *transposed,
                             int64_t transposed_stride) {
    __m512i x[16];
    for (int i = 0; i < 16; i++)
        x[i] = i < rows ? _mm512_loadu_si512(matrix + i * row_stride) : _mm512_setzero_si512();
    transpose(x);
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(transposed + i * transposed_stride, x[i]);
}
