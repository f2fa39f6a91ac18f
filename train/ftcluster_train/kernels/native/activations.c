#include "vectors.h"

enum { GELU, TANH_GELU, SILU };

typedef struct {
    const bf16 *input, *factor, *grad; /* factor: of the activation, or none */
    bf16 *output, *of_factor;
    int64_t count;
} Elements;

static inline __m512 inverse(__m512 x) {
    __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}

/* The activation is x times a gate from 0 to 1; also the derivative of the gate. */
static inline __m512 gate(int kind, __m512 x, __m512 *derivative) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OS);
    if (kind == GELU) {
        /* The normal distribution: its tail is exp(-x^2 / 2) times a function of |x|. The polynomial in
         * t = 1 / (1 + |x| / 4) is within 5e-5 of that function's value up to |x| = 13.2. */
        __m512 power = power_of_two(_mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.72134752f)));
        __m512 size = _mm512_min_ps(_mm512_set1_ps(64.0f), _mm512_abs_ps(x)); /* the inverse of inf is NaN */
        __m512 t = inverse(_mm512_fmadd_ps(size, _mm512_set1_ps(0.25f), one));
        __m512 tail = _mm512_set1_ps(0.24172638f);
        tail = _mm512_fmadd_ps(tail, t, _mm512_set1_ps(-0.10419319f));
        tail = _mm512_fmadd_ps(tail, t, _mm512_set1_ps(0.18066697f));
        tail = _mm512_fmadd_ps(tail, t, _mm512_set1_ps(0.08041941f));
        tail = _mm512_fmadd_ps(tail, t, _mm512_set1_ps(0.10136122f));
        tail = _mm512_mul_ps(_mm512_mul_ps(tail, t), power);
        *derivative = _mm512_mul_ps(power, _mm512_set1_ps(0.398942280f));
        return _mm512_mask_mov_ps(_mm512_sub_ps(one, tail), negative, tail);
    }
    /* The logistic function of z: x, or 2 sqrt(2 / pi) (x + 0.044715 x^3). */
    __m512 z = x, slope = one;
    if (kind == TANH_GELU) {
        __m512 square = _mm512_mul_ps(x, x);
        z = _mm512_fmadd_ps(square, _mm512_set1_ps(0.0713548163f), _mm512_set1_ps(1.59576912f));
        z = _mm512_mul_ps(z, x);
        slope = _mm512_fmadd_ps(square, _mm512_set1_ps(0.214064449f), _mm512_set1_ps(1.59576912f));
    }
    __m512 power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(z)));
    __m512 larger = inverse(_mm512_add_ps(one, power)), smaller = _mm512_mul_ps(power, larger);
    *derivative = _mm512_mul_ps(_mm512_mul_ps(larger, smaller), slope);
    return _mm512_mask_mov_ps(larger, negative, smaller);
}

static inline void activate(const Elements *a, int64_t begin, int64_t end, int kind) {
    for (int64_t i = begin; i < end; i += 16) {
        __mmask16 some = first(end - i);
        __m512 derivative, x = load(a->input + i, some), y = _mm512_mul_ps(x, gate(kind, x, &derivative));
        store(a->output + i, some, a->factor ? _mm512_mul_ps(y, load(a->factor + i, some)) : y);
    }
}

static inline void activate_backward(const Elements *a, int64_t begin, int64_t end, int kind) {
    for (int64_t i = begin; i < end; i += 16) {
        __mmask16 some = first(end - i);
        __m512 derivative, x = load(a->input + i, some), by = gate(kind, x, &derivative);
        __m512 grad = load(a->grad + i, some);
        if (a->factor) {
            store(a->of_factor + i, some, _mm512_mul_ps(grad, _mm512_mul_ps(x, by)));
            grad = _mm512_mul_ps(grad, load(a->factor + i, some));
        }
        store(a->output + i, some, _mm512_mul_ps(grad, _mm512_fmadd_ps(x, derivative, by)));
    }
}

#define PIECE 16 /* elements: a register */

#define LOOPS(name, kind)                                                                                        \
    static void name##_loop(const void *arguments, int64_t begin, int64_t end, int thread) {                     \
        const Elements *a = arguments;                                                                           \
        end = end * PIECE < a->count ? end * PIECE : a->count;                                                   \
        if (a->grad)                                                                                             \
            activate_backward(a, begin * PIECE, end, kind);                                                      \
        else                                                                                                     \
            activate(a, begin * PIECE, end, kind);                                                               \
    }                                                                                                            \
    EXPORT void name(const void *input, const void *factor, const void *grad, void *output, void *of_factor,     \
                     int64_t count, int threads) {                                                               \
        Elements arguments = {input, factor, grad, output, of_factor, count};                                    \
        in_threads(threads, name##_loop, &arguments, (count + PIECE - 1) / PIECE);                               \
    }

LOOPS(gelu, GELU)
LOOPS(tanh_gelu, TANH_GELU)
LOOPS(silu, SILU)
