#include "vectors.h"

#include "mask.h"

#define LONGEST 4096 /* columns of a row; ../simd.py has the same number */

typedef struct {
    int type;
    void *values; /* scores, which become probabilities; backward: gradients of these after dropout, which become those of
                     scores */
    void *others; /* probabilities after dropout; backward: probabilities */
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
    const vec dropout_scale = all(a->drop.scale);
    uint32_t kept_bits[WORDS(LONGEST)];
    float exponentials[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        vec row_max = largest_of(a->values, begin, seen, type), row_sum = zeros();
        REGISTERS(i, some, 0, seen, {
            vec power = exponential(sub(load(a->values, begin + i, some, type), row_max), type);
            store_fp32(exponentials + i, 0xffff, power);
            row_sum = add_some(some, row_sum, power);
        });
        vec inverse_sum = all(1.0f / sum_of(row_sum));
        REGISTERS(i, some, 0, seen, {
            store(a->values, begin + i, some, mul(load_fp32(exponentials + i, 0xffff), inverse_sum), type);
        });
        store_zeros(a->values, begin + seen, begin + a->columns, type);
        if (!a->drops)
            continue;
        draw(kept_bits, begin, seen, a->drop);
        REGISTERS(i, some, 0, seen, {
            vec factor = choose(bits_at(kept_bits, begin % 4 + i), dropout_scale, zeros());
            store(a->others, begin + i, some, mul(load(a->values, begin + i, some, type), factor), type);
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
    const vec dropout_scale = all(a->drop.scale);
    uint32_t kept_bits[WORDS(LONGEST)];
    float kept_grads[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * a->columns, seen = seen_by(a, row);
        vec row_dot = zeros();
        if (a->drops)
            draw(kept_bits, begin, seen, a->drop);
        REGISTERS(i, some, 0, seen, {
            vec grad = load(a->values, begin + i, some, type);
            if (a->drops)
                grad = mul(grad, choose(bits_at(kept_bits, begin % 4 + i), dropout_scale, zeros()));
            store_fp32(kept_grads + i, 0xffff, grad);
            row_dot = mul_add(grad, load(a->others, begin + i, some, type), row_dot);
        });
        row_dot = all(sum_of(row_dot));
        REGISTERS(i, some, 0, seen, {
            vec centered = sub(load_fp32(kept_grads + i, 0xffff), row_dot);
            store(a->values, begin + i, some, mul(load(a->others, begin + i, some, type), centered), type);
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
