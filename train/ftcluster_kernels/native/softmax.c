#include "vectors.h"

#include "mask.h"

#define LONGEST 4096 /* maximum columns of a row; ../simd.py has the same constant */

typedef struct {
    int type;
    void *
        values; /* scores, replaced by probabilities; backward: gradients of the probabilities after dropout, replaced by
                     gradients of the scores */
    void *others; /* probabilities after dropout; backward: probabilities */
    int64_t columns, queries, per_key; /* per_key: number of consecutive queries that see the same keys; 0 if not causal */
    Drop drop;
    int drops;
} Rows;

INLINE int64_t seen_by(const Rows *args, int64_t row) {
    return args->per_key ? args->columns - (args->queries - 1 - row % args->queries) / args->per_key : args->columns;
}

INLINE void store_zeros(void *elements, int64_t begin, int64_t end, int type) {
    REGISTERS(i, active, begin, end, { store(elements, i, active, zeros(), type); });
}

INLINE void softmax_rows(const Rows *args, int64_t row, int64_t end, int thread, int type) {
    const vec dropout_scale = broadcast(args->drop.scale);
    uint32_t kept_bits[WORDS(LONGEST)];
    float exponentials[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * args->columns, seen_columns = seen_by(args, row);
        vec row_max = largest_of(args->values, begin, seen_columns, type), row_sum = zeros();
        REGISTERS(i, active, 0, seen_columns, {
            vec score_exp = exponential(sub(load(args->values, begin + i, active, type), row_max), type);
            store_fp32(exponentials + i, 0xffff, score_exp);
            row_sum = add_active(active, row_sum, score_exp);
        });
        vec inverse_sum = broadcast(1.0f / sum_of(row_sum));
        REGISTERS(i, active, 0, seen_columns, {
            store(args->values, begin + i, active, mul(load_fp32(exponentials + i, 0xffff), inverse_sum), type);
        });
        store_zeros(args->values, begin + seen_columns, begin + args->columns, type);
        if (!args->drops)
            continue;
        draw(kept_bits, begin, seen_columns, args->drop);
        REGISTERS(i, active, 0, seen_columns, {
            vec factor = choose(bits_at(kept_bits, begin % 4 + i), dropout_scale, zeros());
            store(args->others, begin + i, active, mul(load(args->values, begin + i, active, type), factor), type);
        });
        store_zeros(args->others, begin + seen_columns, begin + args->columns, type);
    }
}

LOOP_BY_TYPE(softmax_rows, Rows)

EXPORT void softmax(int64_t type, void *scores, void *dropped, int64_t rows, int64_t columns, int64_t queries,
                    int64_t per_key, uint64_t seed, int64_t threshold, float scale, int threads) {
    Rows arguments = {type, scores, dropped, columns, queries, per_key, {seed, threshold, scale}, dropped != 0};
    in_threads(threads, softmax_rows_loop, &arguments, rows);
}

INLINE void softmax_backward_rows(const Rows *args, int64_t row, int64_t end, int thread, int type) {
    const vec dropout_scale = broadcast(args->drop.scale);
    uint32_t kept_bits[WORDS(LONGEST)];
    float kept_grads[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * args->columns, seen_columns = seen_by(args, row);
        vec row_dot = zeros();
        if (args->drops)
            draw(kept_bits, begin, seen_columns, args->drop);
        REGISTERS(i, active, 0, seen_columns, {
            vec grad = load(args->values, begin + i, active, type);
            if (args->drops)
                grad = mul(grad, choose(bits_at(kept_bits, begin % 4 + i), dropout_scale, zeros()));
            store_fp32(kept_grads + i, 0xffff, grad);
            row_dot = mul_add(grad, load(args->others, begin + i, active, type), row_dot);
        });
        row_dot = broadcast(sum_of(row_dot));
        REGISTERS(i, active, 0, seen_columns, {
            vec centered = sub(load_fp32(kept_grads + i, 0xffff), row_dot);
            store(args->values, begin + i, active, mul(load(args->others, begin + i, active, type), centered), type);
        });
        store_zeros(args->values, begin + seen_columns, begin + args->columns, type);
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
