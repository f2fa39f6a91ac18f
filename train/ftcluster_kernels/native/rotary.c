#include "vectors.h"

/* Rotary positions (Su et al. 2021): each element of the first half of a head's vector is rotated with its counterpart
 * in the second half. */
typedef struct {
    int type;
    const void *input;
    void *output;
    const float *cosines, *sines; /* cosines and sines of each position */
    int64_t positions, heads, half;
    int is_backward; /* 1 to multiply by the transposed matrix, for gradients */
} Rotation;

INLINE void rotate_tokens(const Rotation *args, int64_t token, int64_t end, int thread, int type) {
    const int64_t half = args->half, size = 2 * half;
    for (; token < end; token++) {
        const float *cosine = args->cosines + token % args->positions * size,
                    *sine = args->sines + token % args->positions * size;
        for (int64_t head = token * args->heads; head < (token + 1) * args->heads; head++)
            REGISTERS(i, active, 0, half, {
                const int64_t offset = head * size + i;
                vec low = load(args->input, offset, active, type),
                    high = load(args->input, offset + half, active, type);
                vec sine_for_low = load_fp32(sine + i, active), sine_for_high = load_fp32(sine + half + i, active);
                if (args->is_backward) {
                    vec swapped = sub(zeros(), sine_for_high);
                    sine_for_high = sub(zeros(), sine_for_low);
                    sine_for_low = swapped;
                }
                vec new_low = mul(low, load_fp32(cosine + i, active));
                vec new_high = mul(high, load_fp32(cosine + half + i, active));
                store(args->output, offset, active, neg_mul_add(high, sine_for_low, new_low), type);
                store(args->output, offset + half, active, mul_add(low, sine_for_high, new_high), type);
            });
    }
}

LOOP_BY_TYPE(rotate_tokens, Rotation)

/* `positions`: number of rows of cosines and sines; token number i uses row i % positions. */
EXPORT void rotary(int64_t type, const void *input, void *output, const void *cosines, const void *sines,
                   int64_t tokens, int64_t positions, int64_t heads, int64_t half, int64_t is_backward, int threads) {
    Rotation arguments = {type, input, output, cosines, sines, positions, heads, half, is_backward};
    in_threads(threads, rotate_tokens_loop, &arguments, tokens);
}
