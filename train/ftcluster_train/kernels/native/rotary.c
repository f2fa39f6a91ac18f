#include "vectors.h"

/* Rotary positions (Su et al. 2021): the halves of a head's vector are turned against each other. */
typedef struct {
    const bf16 *input;
    bf16 *output;
    const float *cosines, *sines; /* of each position */
    int64_t positions, heads, half;
    int back; /* the transposed matrix, for gradients */
} Turn;

static void rotary_loop(const void *pointer, int64_t token, int64_t end, int thread) {
    const Turn *a = pointer;
    const int64_t half = a->half, size = 2 * half;
    for (; token < end; token++) {
        const float *cosine = a->cosines + token % a->positions * size, *sine = a->sines + token % a->positions * size;
        for (int64_t head = token * a->heads; head < (token + 1) * a->heads; head++)
            for (int64_t i = 0; i < half; i += 16) {
                __mmask16 some = first(half - i);
                __m512 low = load(a->input + head * size + i, some);
                __m512 high = load(a->input + head * size + half + i, some);
                __m512 to_low = load_fp32(sine + i, some), to_high = load_fp32(sine + half + i, some);
                if (a->back) {
                    __m512 swapped = _mm512_sub_ps(_mm512_setzero_ps(), to_high);
                    to_high = _mm512_sub_ps(_mm512_setzero_ps(), to_low);
                    to_low = swapped;
                }
                __m512 new_low = _mm512_mul_ps(low, load_fp32(cosine + i, some));
                __m512 new_high = _mm512_mul_ps(high, load_fp32(cosine + half + i, some));
                store(a->output + head * size + i, some, _mm512_fnmadd_ps(high, to_low, new_low));
                store(a->output + head * size + half + i, some, _mm512_fmadd_ps(low, to_high, new_high));
            }
    }
}

/* `positions`: tokens whose cosines and sines there are; further tokens begin with the first again. */
EXPORT void rotary(const void *input, void *output, const void *cosines, const void *sines, int64_t tokens,
                   int64_t positions, int64_t heads, int64_t half, int64_t back, int threads) {
    Turn arguments = {input, output, cosines, sines, positions, heads, half, back};
    in_threads(threads, rotary_loop, &arguments, tokens);
}
