#include "vectors.h"

#include "mask.h"

#define LONGEST 4096 /* columns of a row; ../simd.py has the same number */

typedef struct {
    int type;
    void *values, *others;
    int64_t columns, queries, per_key; /* queries of a matrix; causal: of a key, else 0 */
    Drop drop;
    int drops;
} Rows;

INLINE int64_t seen_by(const Rows *a, int64_t row) {
    return a->per_key ? a->columns - (a->queries - 1 - row % a->queries) / a->per_key : a->columns;
}

INLINE void store_zeros(void *numbers, int64_t begin, int64_t end, int type) {
    REGISTERS(i, some, begin, end, { store(numbers, i, some, zeros(), type); });
}

INLINE void softmax_rows(const Rows *a, int64_t row, int64_t end, int thread, int type) {
    const vec scale = all(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float powers[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        vec largest = largest_of(a->values, begin, seen, type), sum = zeros();
        REGISTERS(i, some, 0, seen, {
            vec power = exponential(sub(load(a->values, begin + i, some, type), largest), type);
            store_fp32(powers + i, 0xffff, power);
            sum = add_some(some, sum, power);
        });
        vec inverse = all(1.0f / sum_of(sum));
        REGISTERS(i, some, 0, seen, {
            store(a->values, begin + i, some, mul(load_fp32(powers + i, 0xffff), inverse), type);
        });
        store_zeros(a->values, begin + seen, begin + a->columns, type);
        if (!a->drops)
            continue;
        draw(bits, begin, seen, a->drop);
        REGISTERS(i, some, 0, seen, {
            vec by = choose(bits_at(bits, begin % 4 + i), scale, zeros());
            store(a->others, begin + i, some, mul(load(a->values, begin + i, some, type), by), type);
        });
        store_zeros(a->others, begin + seen, begin + a->columns, type);
    }
}

LOOP_BY_TYPE(softmax_rows, Rows)

EXPORT void softmax(int64_t type, void *scores, void *dropped, int64_t rows, int64_t columns, int64_t queries,
                    int64_t per_key, uint64_t seed, int64_t threshold, float scale, int threads) {
    Rows arguments = {type, scores, dropped, columns, queries, per_key, {seed, threshold, scale}, dropped != 0};
    in_threads(threads, softmax_rows_loop, &arguments, rows);
}

INLINE void softmax_backward_rows(const Rows *a, int64_t row, int64_t end, int thread, int type) {
    const vec scale = all(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float kept[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        vec along = zeros();
        if (a->drops)
            draw(bits, begin, seen, a->drop);
        REGISTERS(i, some, 0, seen, {
            vec value = load(a->values, begin + i, some, type);
            if (a->drops)
                value = mul(value, choose(bits_at(bits, begin % 4 + i), scale, zeros()));
            store_fp32(kept + i, 0xffff, value);
            along = mul_add(value, load(a->others, begin + i, some, type), along);
        });
        along = all(sum_of(along));
        REGISTERS(i, some, 0, seen, {
            vec of_score = sub(load_fp32(kept + i, 0xffff), along);
            store(a->values, begin + i, some, mul(load(a->others, begin + i, some, type), of_score), type);
        });
        store_zeros(a->values, begin + seen, begin + a->columns, type);
    }
}

LOOP_BY_TYPE(softmax_backward_rows, Rows)

EXPORT void softmax_backward(int64_t type, void *grad, const void *probabilities, int64_t rows, int64_t columns,
                             int64_t queries, int64_t per_key, uint64_t seed, int64_t threshold, float scale,
                             int64_t drops, int threads) {
    Rows arguments = {type,    grad, (void *)probabilities, columns, queries, per_key, {seed, threshold, scale},
                      drops};
    in_threads(threads, softmax_backward_rows_loop, &arguments, rows);
}
