#include "vectors.h"

typedef struct {
    bf16 *logits;
    const int64_t *targets;
    const float *factors;
    float *totals, *scores;
    int64_t columns, stride;
} Losses;

static void cross_entropy_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Losses *a = pointer;
    const int64_t columns = a->columns;
    for (; row < end; row++) {
        bf16 *logits = a->logits + row * a->stride;
        __m512 largest = largest_of(logits, columns), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 power = exponential(_mm512_sub_ps(load(logits + i, some), largest));
            sum = _mm512_mask_add_ps(sum, some, sum, power);
        }
        float total = _mm512_reduce_add_ps(sum), factor = a->factors ? a->factors[row] : 1;
        __m512 of_target = _mm512_sub_ps(load(logits + a->targets[row], 1), largest);
        a->totals[row] = total;
        a->scores[row] = _mm512_cvtss_f32(of_target);
        /* powers are computed again: a row of them would leave no room in a small cache */
        __m512 by = _mm512_set1_ps(factor / total);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 power = exponential(_mm512_sub_ps(load(logits + i, some), largest));
            store(logits + i, some, _mm512_mul_ps(power, by));
        }
        __m512 probability = _mm512_mul_ps(exponential(of_target), by);
        store(logits + a->targets[row], 1, _mm512_sub_ps(probability, _mm512_set1_ps(factor)));
        for (int64_t i = columns; i < a->stride; i += 16)
            store(logits + i, first(a->stride - i), _mm512_setzero_ps());
    }
}

EXPORT void cross_entropy(void *logits, const void *targets, const void *factors, void *totals, void *scores,
                          int64_t rows, int64_t columns, int64_t stride, int threads) {
    Losses arguments = {logits, targets, factors, totals, scores, columns, stride};
    in_threads(threads, cross_entropy_loop, &arguments, rows);
}
