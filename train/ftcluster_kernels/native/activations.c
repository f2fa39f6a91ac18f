#include "vectors.h"

enum { GELU, TANH_GELU, SILU };

typedef struct {
    int type;
    const void *input, *factor, *grad; /* factor: of the activation, or none */
    void *output, *of_factor; /* backward: gradients of the input and of the factor */
    int64_t count;
} Elements;

INLINE vec inverse(vec x, int type) { return type == FP32 ? quotient(all(1.0f), x) : nearly_inverse(x); }

/* The normal distribution's tail from x > 0 on, divided by exp(-x^2 / 2): t = 1 / (1 + x / 4) times a
 * polynomial in t, fitted up to x = 13.2 for the smallest largest relative error: 5e-5, in fp32 5e-8. */
INLINE vec tail_of(vec x, int type) {
    vec t = inverse(mul_add(x, all(0.25f), all(1.0f)), type), y;
    if (type == FP32) {
        y = all(0.0262954813f);
        y = mul_add(y, t, all(-0.155636576f));
        y = mul_add(y, t, all(0.302076479f));
        y = mul_add(y, t, all(-0.212748555f));
        y = mul_add(y, t, all(0.206697023f));
        y = mul_add(y, t, all(0.0307588218f));
        y = mul_add(y, t, all(0.10432185f));
        y = mul_add(y, t, all(0.0984327916f));
        y = mul_add(y, t, all(0.0998026584f));
    } else {
        y = all(0.24172638f);
        y = mul_add(y, t, all(-0.10419319f));
        y = mul_add(y, t, all(0.18066697f));
        y = mul_add(y, t, all(0.08041941f));
        y = mul_add(y, t, all(0.10136122f));
    }
    return mul(y, t);
}

/* The activation is x times a gate from 0 to 1; also the derivative of the gate. */
INLINE vec gate(int kind, vec x, vec *derivative, int type) {
    const vec one = all(1.0f);
    lanes below = negative(x);
    if (kind == GELU) {
        vec power = power_of_two(mul(mul(x, x), all(-0.72134752f)));
        vec capped = smaller(all(64.0f), magnitude(x)); /* the inverse of inf is NaN */
        vec tail = mul(tail_of(capped, type), power);
        *derivative = mul(power, all(0.398942280f));
        return choose(below, tail, sub(one, tail));
    }
    /* The logistic function of z: x, or 2 sqrt(2 / pi) (x + 0.044715 x^3). */
    vec z = x, slope = one;
    if (kind == TANH_GELU) {
        vec square = mul(x, x);
        z = mul(mul_add(square, all(0.0713548163f), all(1.59576912f)), x);
        slope = mul_add(square, all(0.214064449f), all(1.59576912f));
    }
    vec power = exponential(sub(zeros(), magnitude(z)), type);
    vec upper_gate = inverse(add(one, power), type), lower_gate = mul(power, upper_gate);
    *derivative = mul(mul(upper_gate, lower_gate), slope);
    return choose(below, lower_gate, upper_gate);
}

INLINE void activate(const Elements *a, int64_t begin, int64_t end, int kind, int type) {
    REGISTERS(i, some, begin, end, {
        vec derivative, x = load(a->input, i, some, type), y = mul(x, gate(kind, x, &derivative, type));
        store(a->output, i, some, a->factor ? mul(y, load(a->factor, i, some, type)) : y, type);
    });
}

INLINE void activate_backward(const Elements *a, int64_t begin, int64_t end, int kind, int type) {
    REGISTERS(i, some, begin, end, {
        vec derivative, x = load(a->input, i, some, type), by = gate(kind, x, &derivative, type);
        vec grad = load(a->grad, i, some, type);
        if (a->factor) {
            store(a->of_factor, i, some, mul(grad, mul(x, by)), type);
            grad = mul(grad, load(a->factor, i, some, type));
        }
        store(a->output, i, some, mul(grad, mul_add(x, derivative, by)), type);
    });
}

#define PIECE 16 /* elements: a register */

#define ACTIVATION(name, kind)                                                                                  \
    INLINE void name##_pieces(const Elements *a, int64_t first_piece, int64_t end_piece, int thread, int type) { \
        int64_t end = end_piece * PIECE < a->count ? end_piece * PIECE : a->count;                              \
        if (a->grad)                                                                                            \
            activate_backward(a, first_piece * PIECE, end, kind, type);                                         \
        else                                                                                                    \
            activate(a, first_piece * PIECE, end, kind, type);                                                  \
    }                                                                                                           \
    LOOP_BY_TYPE(name##_pieces, Elements)                                                                       \
    EXPORT void name(int64_t type, const void *input, const void *factor, const void *grad, void *output,       \
                     void *of_factor, int64_t count, int threads) {                                             \
        Elements arguments = {type, input, factor, grad, output, of_factor, count};                             \
        in_threads(threads, name##_pieces_loop, &arguments, (count + PIECE - 1) / PIECE);                       \
    }

ACTIVATION(gelu, GELU)
ACTIVATION(tanh_gelu, TANH_GELU)
ACTIVATION(silu, SILU)
