#include "vectors.h"

typedef struct {
    int type;
    void *logits;
    const int64_t *targets;
    const float *factors;
    float *totals, *scores;
    int64_t columns, stride;
} Losses;

INLINE void cross_entropy_rows(const Losses *args, int64_t row, int64_t end, int thread, int type) {
    const int64_t columns = args->columns;
    for (; row < end; row++) {
        const int64_t begin = row * args->stride, target_offset = begin + args->targets[row];
        vec row_max = largest_of(args->logits, begin, columns, type), row_sum = zeros();
        REGISTERS(i, active, 0, columns, {
            row_sum = add_active(active, row_sum,
                                 exponential(sub(load(args->logits, begin + i, active, type), row_max), type));
        });
        float total = sum_of(row_sum), factor = args->factors ? args->factors[row] : 1;
        vec target_score = sub(load(args->logits, target_offset, 1, type), row_max);
        args->totals[row] = total;
        args->scores[row] = first_of(target_score);
        /* compute the exponentials again, because a small cache has no room for them beside the logits */
        vec factor_by_total = broadcast(factor / total);
        REGISTERS(i, active, 0, columns, {
            vec logit_exp = exponential(sub(load(args->logits, begin + i, active, type), row_max), type);
            store(args->logits, begin + i, active, mul(logit_exp, factor_by_total), type);
        });
        vec probability = mul(exponential(target_score, type), factor_by_total);
        store(args->logits, target_offset, 1, sub(probability, broadcast(factor)), type);
        REGISTERS(i, active, columns, args->stride, { store(args->logits, begin + i, active, zeros(), type); });
    }
}

LOOP_BY_TYPE(cross_entropy_rows, Losses)

EXPORT void cross_entropy(int64_t type, void *logits, const void *targets, const void *factors, void *totals,
                          void *scores, int64_t rows, int64_t columns, int64_t stride, int threads) {
    Losses arguments = {type, logits, targets, factors, totals, scores, columns, stride};
    in_threads(threads, cross_entropy_rows_loop, &arguments, rows);
}
