#include "vectors.h"

#include "mask.h"

#define LONGEST 4096 /* columns of a row; ../avx512.py has the same number */

typedef struct {
    bf16 *values, *others;
    int64_t columns, queries, per_key; /* queries of a matrix; causal: of a key, else 0 */
    Drop drop;
    int drops;
} Rows;

static inline int64_t seen_by(const Rows *a, int64_t row) {
    return a->per_key ? a->columns - (a->queries - 1 - row % a->queries) / a->per_key : a->columns;
}

static inline void zero(bf16 *values, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 32)
        _mm512_mask_storeu_epi16(values + i, end - i >= 32 ? ~0u : (1u << (end - i)) - 1, _mm512_setzero_si512());
}

static void softmax_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Rows *a = pointer;
    const __m512 scale = _mm512_set1_ps(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float powers[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        bf16 *scores = a->values + begin, *dropped = a->others + begin;
        __m512 largest = largest_of(scores, seen), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < seen; i += 16) {
            __mmask16 some = first(seen - i);
            __m512 power = exponential(_mm512_sub_ps(load(scores + i, some), largest));
            _mm512_storeu_ps(powers + i, power);
            sum = _mm512_mask_add_ps(sum, some, sum, power);
        }
        __m512 inverse = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
        for (int64_t i = 0; i < seen; i += 16)
            store(scores + i, first(seen - i), _mm512_mul_ps(_mm512_loadu_ps(powers + i), inverse));
        zero(scores, seen, a->columns);
        if (!a->drops)
            continue;
        draw(bits, begin, seen, a->drop);
        for (int64_t i = 0; i < seen; i += 16) {
            __mmask16 some = first(seen - i);
            __m512 by = _mm512_maskz_mov_ps(bits_at(bits, begin % 4 + i), scale);
            store(dropped + i, some, _mm512_mul_ps(load(scores + i, some), by));
        }
        zero(dropped, seen, a->columns);
    }
}

EXPORT void softmax(void *scores, void *dropped, int64_t rows, int64_t columns, int64_t queries, int64_t per_key,
                    uint64_t seed, int64_t threshold, float scale, int threads) {
    Rows arguments = {scores, dropped, columns, queries, per_key, {seed, threshold, scale}, dropped != 0};
    in_threads(threads, softmax_loop, &arguments, rows);
}

static void softmax_backward_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Rows *a = pointer;
    const __m512 scale = _mm512_set1_ps(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float kept[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        bf16 *grad = a->values + begin;
        const bf16 *probabilities = a->others + begin;
        __m512 sum = _mm512_setzero_ps();
        if (a->drops)
            draw(bits, begin, seen, a->drop);
        for (int64_t i = 0; i < seen; i += 16) {
            __mmask16 some = first(seen - i);
            __m512 value = load(grad + i, some);
            if (a->drops)
                value = _mm512_mul_ps(value, _mm512_maskz_mov_ps(bits_at(bits, begin % 4 + i), scale));
            _mm512_storeu_ps(kept + i, value);
            sum = _mm512_fmadd_ps(value, load(probabilities + i, some), sum);
        }
        sum = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
        for (int64_t i = 0; i < seen; i += 16) {
            __mmask16 some = first(seen - i);
            __m512 of_score = _mm512_sub_ps(_mm512_loadu_ps(kept + i), sum);
            store(grad + i, some, _mm512_mul_ps(load(probabilities + i, some), of_score));
        }
        zero(grad, seen, a->columns);
    }
}

EXPORT void softmax_backward(void *grad, const void *probabilities, int64_t rows, int64_t columns, int64_t queries,
                             int64_t per_key, uint64_t seed, int64_t threshold, float scale, int64_t drops, int threads) {
    Rows arguments = {grad, (bf16 *)probabilities, columns, queries, per_key, {seed, threshold, scale}, drops};
    in_threads(threads, softmax_backward_loop, &arguments, rows);
}
