#include "vectors.h"

/* LayerNorm and RMSNorm of rows in fp32. */
typedef struct {
    const float *input, *weight, *bias; /* the last two: or none */
    const float *grad;                  /* of the output in fp32 and in bf16: one of them, or both */
    const bf16 *rounded_grad;
    float *output;
    bf16 *rounded;         /* the same in bf16, or none */
    float *means, *scales; /* of each row; no means: RMSNorm */
    float *sums;           /* of the gradients of weight and bias, for each thread */
    int64_t columns;
    float epsilon;
} Norm;

static void norm_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Norm *a = pointer;
    const int64_t columns = a->columns;
    for (; row < end; row++) {
        const float *x = a->input + row * columns;
        vec sum = zeros(), squares = zeros(), mean = zeros();
        if (a->means) {
            REGISTERS(i, some, 0, columns, { sum = add(sum, load_fp32(x + i, some)); });
            a->means[row] = sum_of(sum) / columns;
            mean = all(a->means[row]);
        }
        REGISTERS(i, some, 0, columns, {
            vec deviation = sub(load_fp32(x + i, some), mean);
            squares = add_some(some, squares, mul(deviation, deviation));
        });
        vec variance = all(sum_of(squares) / columns + a->epsilon);
        vec scale = quotient(all(1.0f), square_root(variance));
        a->scales[row] = first_of(scale);
        REGISTERS(i, some, 0, columns, {
            vec y = mul(sub(load_fp32(x + i, some), mean), scale);
            if (a->weight)
                y = mul(y, load_fp32(a->weight + i, some));
            if (a->bias)
                y = add(y, load_fp32(a->bias + i, some));
            store_fp32(a->output + row * columns + i, some, y);
            if (a->rounded)
                store_bf16(a->rounded + row * columns + i, some, y);
        });
    }
}

EXPORT void norm(const void *input, const void *weight, const void *bias, void *output, void *rounded, void *means,
                 void *scales, int64_t rows, int64_t columns, float epsilon, int threads) {
    Norm arguments = {.input = input, .weight = weight, .bias = bias, .output = output, .rounded = rounded,
                      .means = means, .scales = scales, .columns = columns, .epsilon = epsilon};
    in_threads(threads, norm_loop, &arguments, rows);
}

INLINE vec grad_at(const Norm *a, int64_t place, lanes some) {
    vec grad = zeros();
    if (a->grad)
        grad = load_fp32(a->grad + place, some);
    if (a->rounded_grad)
        grad = add(grad, load_bf16(a->rounded_grad + place, some));
    return grad;
}

static void norm_backward_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Norm *a = pointer;
    const int64_t columns = a->columns;
    float *of_weight = a->sums + 2 * columns * thread, *of_bias = of_weight + columns;
    for (; row < end; row++) {
        const float *x = a->input + row * columns;
        const vec mean = all(a->means ? a->means[row] : 0), scale = all(a->scales[row]);
        vec sum = zeros(), grad_dot = zeros();
        REGISTERS(i, some, 0, columns, {
            vec grad = grad_at(a, row * columns + i, some); /* 0 in other lanes */
            vec normal = mul(sub(load_fp32(x + i, some), mean), scale);
            store_fp32(of_weight + i, some, mul_add(grad, normal, load_fp32(of_weight + i, some)));
            if (a->means)
                store_fp32(of_bias + i, some, add(grad, load_fp32(of_bias + i, some)));
            if (a->weight)
                grad = mul(grad, load_fp32(a->weight + i, some));
            sum = add(sum, grad);
            grad_dot = mul_add(grad, normal, grad_dot);
        });
        const vec shift = all(a->means ? sum_of(sum) / columns : 0), slope = all(sum_of(grad_dot) / columns);
        REGISTERS(i, some, 0, columns, {
            vec grad = grad_at(a, row * columns + i, some);
            vec normal = mul(sub(load_fp32(x + i, some), mean), scale);
            if (a->weight)
                grad = mul(grad, load_fp32(a->weight + i, some));
            grad = neg_mul_add(normal, slope, sub(grad, shift));
            store_fp32(a->output + row * columns + i, some, mul(grad, scale));
        });
    }
}

/* `sums`: zeros, for each thread of the gradients of weight and bias. */
EXPORT void norm_backward(const void *input, const void *weight, const void *grad, const void *rounded_grad,
                          const void *means, const void *scales, void *output, void *sums, int64_t rows,
                          int64_t columns, int threads) {
    Norm arguments = {.input = input, .weight = weight, .grad = grad, .rounded_grad = rounded_grad,
                      .output = output, .means = (float *)means, .scales = (float *)scales, .sums = sums,
                      .columns = columns};
    in_shares(threads, norm_backward_loop, &arguments, rows);
}
