#include "vectors.h"

/* Rotary positions (Su et al. 2021): the halves of a head's vector are turned against each other. */
typedef struct {
    int type;
    const void *input;
    void *output;
    const float *cosines, *sines; /* of each position */
    int64_t positions, heads, half;
    int back; /* the transposed matrix, for gradients */
} Turn;

INLINE void turn_tokens(const Turn *a, int64_t token, int64_t end, int thread, int type) {
    const int64_t half = a->half, size = 2 * half;
    for (; token < end; token++) {
        const float *cosine = a->cosines + token % a->positions * size, *sine = a->sines + token % a->positions * size;
        for (int64_t head = token * a->heads; head < (token + 1) * a->heads; head++)
            REGISTERS(i, some, 0, half, {
                const int64_t place = head * size + i;
                vec low = load(a->input, place, some, type), high = load(a->input, place + half, some, type);
                vec to_low = load_fp32(sine + i, some), to_high = load_fp32(sine + half + i, some);
                if (a->back) {
                    vec swapped = sub(zeros(), to_high);
                    to_high = sub(zeros(), to_low);
                    to_low = swapped;
                }
                vec new_low = mul(low, load_fp32(cosine + i, some));
                vec new_high = mul(high, load_fp32(cosine + half + i, some));
                store(a->output, place, some, neg_mul_add(high, to_low, new_low), type);
                store(a->output, place + half, some, mul_add(low, to_high, new_high), type);
            });
    }
}

LOOP_BY_TYPE(turn_tokens, Turn)

/* `positions`: tokens whose cosines and sines there are; further tokens begin with the first again. */
EXPORT void rotary(int64_t type, const void *input, void *output, const void *cosines, const void *sines,
                   int64_t tokens, int64_t positions, int64_t heads, int64_t half, int64_t back, int threads) {
    Turn arguments = {type, input, output, cosines, sines, positions, heads, half, back};
    in_threads(threads, turn_tokens_loop, &arguments, tokens);
}
