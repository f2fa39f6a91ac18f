#include "vectors.h"

/* LayerNorm and RMSNorm for rows in fp32. */
typedef struct {
    const float *input, *weight, *bias; /* weight and bias may be NULL */
    const float *grad;        /* gradient of the fp32 output, or NULL */
    const bf16 *rounded_grad; /* gradient of the bf16 output, or NULL; both gradients are added */
    float *output;
    bf16 *rounded;         /* the output in bf16, or NULL */
    float *means, *scales; /* mean and scale of each row; means is NULL for RMSNorm */
    float *sums;           /* for each thread, gradients of weight and bias */
    int64_t columns;
    float epsilon;
} Norm;

static void norm_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Norm *args = pointer;
    const int64_t columns = args->columns;
    for (; row < end; row++) {
        const float *row_input = args->input + row * columns;
        vec sum = zeros(), squares = zeros(), mean = zeros();
        if (args->means) {
            REGISTERS(i, active, 0, columns, { sum = add(sum, load_fp32(row_input + i, active)); });
            args->means[row] = sum_of(sum) / columns;
            mean = broadcast(args->means[row]);
        }
        REGISTERS(i, active, 0, columns, {
            vec deviation = sub(load_fp32(row_input + i, active), mean);
            squares = add_active(active, squares, mul(deviation, deviation));
        });
        vec variance = broadcast(sum_of(squares) / columns + args->epsilon);
        vec scale = quotient(broadcast(1.0f), square_root(variance));
        args->scales[row] = first_of(scale);
        REGISTERS(i, active, 0, columns, {
            vec normalized = mul(sub(load_fp32(row_input + i, active), mean), scale);
            if (args->weight)
                normalized = mul(normalized, load_fp32(args->weight + i, active));
            if (args->bias)
                normalized = add(normalized, load_fp32(args->bias + i, active));
            store_fp32(args->output + row * columns + i, active, normalized);
            if (args->rounded)
                store_bf16(args->rounded + row * columns + i, active, normalized);
        });
    }
}

EXPORT void norm(const void *input, const void *weight, const void *bias, void *output, void *rounded, void *means,
                 void *scales, int64_t rows, int64_t columns, float epsilon, int threads) {
    Norm arguments = {.input = input, .weight = weight, .bias = bias, .output = output, .rounded = rounded,
                      .means = means, .scales = scales, .columns = columns, .epsilon = epsilon};
    in_threads(threads, norm_loop, &arguments, rows);
}

INLINE vec grad_at(const Norm *args, int64_t offset, lanes active) {
    vec grad = zeros();
    if (args->grad)
        grad = load_fp32(args->grad + offset, active);
    if (args->rounded_grad)
        grad = add(grad, load_bf16(args->rounded_grad + offset, active));
    return grad;
}

static void norm_backward_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Norm *args = pointer;
    const int64_t columns = args->columns;
    float *grad_weight = args->sums + 2 * columns * thread, *grad_bias = grad_weight + columns;
    for (; row < end; row++) {
        const float *row_input = args->input + row * columns;
        const vec mean = broadcast(args->means ? args->means[row] : 0), scale = broadcast(args->scales[row]);
        vec sum = zeros(), grad_dot = zeros();
        REGISTERS(i, active, 0, columns, {
            vec grad = grad_at(args, row * columns + i, active); /* inactive lanes are 0 */
            vec normalized = mul(sub(load_fp32(row_input + i, active), mean), scale);
            store_fp32(grad_weight + i, active, mul_add(grad, normalized, load_fp32(grad_weight + i, active)));
            if (args->means)
                store_fp32(grad_bias + i, active, add(grad, load_fp32(grad_bias + i, active)));
            if (args->weight)
                grad = mul(grad, load_fp32(args->weight + i, active));
            sum = add(sum, grad);
            grad_dot = mul_add(grad, normalized, grad_dot);
        });
        const vec shift = broadcast(args->means ? sum_of(sum) / columns : 0),
                  slope = broadcast(sum_of(grad_dot) / columns);
        REGISTERS(i, active, 0, columns, {
            vec grad = grad_at(args, row * columns + i, active);
            vec normalized = mul(sub(load_fp32(row_input + i, active), mean), scale);
            if (args->weight)
                grad = mul(grad, load_fp32(args->weight + i, active));
            grad = neg_mul_add(normalized, slope, sub(grad, shift));
            store_fp32(args->output + row * columns + i, active, mul(grad, scale));
        });
    }
}

/* `sums` must be zeros; each thread adds its gradients of weight and bias to its part of `sums`. */
EXPORT void norm_backward(const void *input, const void *weight, const void *grad, const void *rounded_grad,
                          const void *means, const void *scales, void *output, void *sums, int64_t rows,
                          int64_t columns, int threads) {
    Norm arguments = {.input = input, .weight = weight, .grad = grad, .rounded_grad = rounded_grad,
                      .output = output, .means = (float *)means, .scales = (float *)scales, .sums = sums,
                      .columns = columns};
    in_shares(threads, norm_backward_loop, &arguments, rows);
}
