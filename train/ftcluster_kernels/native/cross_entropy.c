#include "vectors.h"

typedef struct {
    int type;
    void *logits;
    const int64_t *targets;
    const float *factors;
    float *totals, *scores;
    int64_t columns, stride;
} Losses;

INLINE void cross_entropy_rows(const Losses *a, int64_t row, int64_t end, int thread, int type) {
    const int64_t columns = a->columns;
    for (; row < end; row++) {
        const int64_t begin = row * a->stride, target_place = begin + a->targets[row];
        vec row_max = largest_of(a->logits, begin, columns, type), row_sum = zeros();
        REGISTERS(i, some, 0, columns, {
            row_sum = add_some(some, row_sum, exponential(sub(load(a->logits, begin + i, some, type), row_max), type));
        });
        float total = sum_of(row_sum), factor = a->factors ? a->factors[row] : 1;
        vec target_score = sub(load(a->logits, target_place, 1, type), row_max);
        a->totals[row] = total;
        a->scores[row] = first_of(target_score);
        /* powers are computed again: a row of them would leave no room in a small cache */
        vec factor_by_total = all(factor / total);
        REGISTERS(i, some, 0, columns, {
            vec power = exponential(sub(load(a->logits, begin + i, some, type), row_max), type);
            store(a->logits, begin + i, some, mul(power, factor_by_total), type);
        });
        vec probability = mul(exponential(target_score, type), factor_by_total);
        store(a->logits, target_place, 1, sub(probability, all(factor)), type);
        REGISTERS(i, some, columns, a->stride, { store(a->logits, begin + i, some, zeros(), type); });
    }
}

LOOP_BY_TYPE(cross_entropy_rows, Losses)

EXPORT void cross_entropy(int64_t type, void *logits, const void *targets, const void *factors, void *totals,
                          void *scores, int64_t rows, int64_t columns, int64_t stride, int threads) {
    Losses arguments = {type, logits, targets, factors, totals, scores, columns, stride};
    in_threads(threads, cross_entropy_rows_loop, &arguments, rows);
}
