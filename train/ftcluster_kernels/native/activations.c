#include "vectors.h"

#include "mask.h"

enum { GELU, TANH_GELU, SILU, RELU };

typedef struct {
    int type;
    const void *input, *factor, *grad; /* factor: multiplies the activation; NULL if there is none. grad: NULL in the forward pass */
    void *output, *of_factor; /* backward pass: gradients of the input and of the factor */
    int64_t count;
    int64_t drops; /* 0 if there is no dropout */
    Drop drop;     /* dropout of the output */
} Elements;

INLINE vec inverse(vec x, int type) { return type == FP32 ? quotient(broadcast(1.0f), x) : nearly_inverse(x); }

/* Return the upper tail probability of the standard normal distribution at x > 0, divided by exp(-x^2 / 2). The result
 * is t = 1 / (1 + x / 4) times a polynomial in t, a minimax fit for x up to 13.2. Its relative error is 5e-8 in fp32,
 * otherwise 5e-5. */
INLINE vec tail_of(vec x, int type) {
    vec t = inverse(mul_add(x, broadcast(0.25f), broadcast(1.0f)), type), y;
    if (type == FP32) {
        y = broadcast(0.0262954813f);
        y = mul_add(y, t, broadcast(-0.155636576f));
        y = mul_add(y, t, broadcast(0.302076479f));
        y = mul_add(y, t, broadcast(-0.212748555f));
        y = mul_add(y, t, broadcast(0.206697023f));
        y = mul_add(y, t, broadcast(0.0307588218f));
        y = mul_add(y, t, broadcast(0.10432185f));
        y = mul_add(y, t, broadcast(0.0984327916f));
        y = mul_add(y, t, broadcast(0.0998026584f));
    } else {
        y = broadcast(0.24172638f);
        y = mul_add(y, t, broadcast(-0.10419319f));
        y = mul_add(y, t, broadcast(0.18066697f));
        y = mul_add(y, t, broadcast(0.08041941f));
        y = mul_add(y, t, broadcast(0.10136122f));
    }
    return mul(y, t);
}

/* Return the gate, a factor from 0 to 1 such that the activation is x times the gate; set the gate's derivative. */
INLINE vec gate(int kind, vec x, vec *derivative, int type) {
    const vec one = broadcast(1.0f);
    lanes is_negative = negative(x);
    if (kind == GELU) {
        vec exponential_term = power_of_two(mul(mul(x, x), broadcast(-0.72134752f)));
        vec capped = smaller(broadcast(64.0f), magnitude(x)); /* the inverse of inf is NaN */
        vec tail = mul(tail_of(capped, type), exponential_term);
        *derivative = mul(exponential_term, broadcast(0.398942280f));
        return choose(is_negative, tail, sub(one, tail));
    }
    /* The gate is the logistic function of z. For SiLU, z = x; for tanh GELU, z = 2 sqrt(2 / pi) (x + 0.044715 x^3). */
    vec z = x, slope = one;
    if (kind == TANH_GELU) {
        vec square = mul(x, x);
        z = mul(mul_add(square, broadcast(0.0713548163f), broadcast(1.59576912f)), x);
        slope = mul_add(square, broadcast(0.214064449f), broadcast(1.59576912f));
    }
    vec exponential_term = exponential(sub(zeros(), magnitude(z)), type);
    vec upper_gate = inverse(add(one, exponential_term), type), lower_gate = mul(exponential_term, upper_gate);
    *derivative = mul(mul(upper_gate, lower_gate), slope);
    return choose(is_negative, lower_gate, upper_gate);
}

/* Return the activation of x, and set its derivative. */
INLINE vec activated(int kind, vec x, vec *derivative, int type) {
    if (kind == RELU) {
        *derivative = choose(negative(sub(zeros(), x)), broadcast(1.0f), zeros());
        return choose(negative(x), zeros(), x); /* NaN stays NaN */
    }
    vec of_gate, gate_value = gate(kind, x, &of_gate, type);
    *derivative = mul_add(x, of_gate, gate_value);
    return mul(x, gate_value);
}

/* Return the dropout factors of 16 elements. `bits` are the bits of the elements from `begin`. */
INLINE vec dropout_factors(const Elements *args, const uint32_t *bits, int64_t number) {
    return args->drops ? choose(bits_at(bits, number), broadcast(args->drop.scale), zeros()) : broadcast(1.0f);
}

INLINE void activate(const Elements *args, const uint32_t *bits, int64_t begin, int64_t end, int kind, int type) {
    REGISTERS(i, active, begin, end, {
        vec derivative, y = activated(kind, load(args->input, i, active, type), &derivative, type);
        if (args->factor)
            y = mul(y, load(args->factor, i, active, type));
        store(args->output, i, active, mul(y, dropout_factors(args, bits, i - begin)), type);
    });
}

INLINE void activate_backward(const Elements *args, const uint32_t *bits, int64_t begin, int64_t end, int kind,
                              int type) {
    REGISTERS(i, active, begin, end, {
        vec derivative, y = activated(kind, load(args->input, i, active, type), &derivative, type);
        vec grad = mul(load(args->grad, i, active, type), dropout_factors(args, bits, i - begin));
        if (args->factor) {
            store(args->of_factor, i, active, mul(grad, y), type);
            grad = mul(grad, load(args->factor, i, active, type));
        }
        store(args->output, i, active, mul(grad, derivative), type);
    });
}

INLINE void activation_pieces(const Elements *args, int64_t first_piece, int64_t end_piece, int kind, int type) {
    uint32_t kept_bits[WORDS(PIECE)];
    for (int64_t begin = first_piece * PIECE; begin < end_piece * PIECE; begin += PIECE) {
        int64_t end = begin + PIECE < args->count ? begin + PIECE : args->count;
        if (args->drops)
            draw(kept_bits, begin, end - begin, args->drop);
        if (args->grad)
            activate_backward(args, kept_bits, begin, end, kind, type);
        else
            activate(args, kept_bits, begin, end, kind, type);
    }
}

#define ACTIVATION(name, kind)                                                                                      \
    INLINE void name##_pieces(const Elements *args, int64_t first_piece, int64_t end_piece, int thread, int type) { \
        activation_pieces(args, first_piece, end_piece, kind, type);                                                \
    }                                                                                                               \
    LOOP_BY_TYPE(name##_pieces, Elements)                                                                           \
    EXPORT void name(int64_t type, const void *input, const void *factor, const void *grad, void *output,           \
                     void *of_factor, int64_t count, int64_t drops, uint64_t seed, int64_t threshold, float scale,  \
                     int threads) {                                                                                 \
        Elements arguments = {type,  input, factor,                  grad, output, of_factor,                       \
                              count, drops, {seed, threshold, scale}};                                              \
        in_threads(threads, name##_pieces_loop, &arguments, (count + PIECE - 1) / PIECE);                           \
    }

ACTIVATION(gelu, GELU)
ACTIVATION(tanh_gelu, TANH_GELU)
ACTIVATION(silu, SILU)
ACTIVATION(relu, RELU)
