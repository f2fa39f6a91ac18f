#include "vectors.h"

/* LayerNorm and RMSNorm of rows in fp32. */
typedef struct {
    const float *input, *weight, *bias; /* the last two: or none */
    const float *grad;                  /* of the output in fp32 and in bf16: one of them, or both */
    const bf16 *rounded_grad;
    float *output;
    bf16 *rounded;         /* the same in bf16 */
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
        __m512 sum = _mm512_setzero_ps(), squares = _mm512_setzero_ps(), mean = _mm512_setzero_ps();
        if (a->means) {
            for (int64_t i = 0; i < columns; i += 16)
                sum = _mm512_add_ps(sum, load_fp32(x + i, first(columns - i)));
            a->means[row] = _mm512_reduce_add_ps(sum) / columns;
            mean = _mm512_set1_ps(a->means[row]);
        }
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 apart = _mm512_maskz_sub_ps(some, load_fp32(x + i, some), mean);
            squares = _mm512_fmadd_ps(apart, apart, squares);
        }
        __m512 variance = _mm512_set1_ps(_mm512_reduce_add_ps(squares) / columns + a->epsilon);
        __m512 scale = _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(variance));
        a->scales[row] = _mm512_cvtss_f32(scale);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 y = _mm512_mul_ps(_mm512_sub_ps(load_fp32(x + i, some), mean), scale);
            if (a->weight)
                y = _mm512_mul_ps(y, load_fp32(a->weight + i, some));
            if (a->bias)
                y = _mm512_add_ps(y, load_fp32(a->bias + i, some));
            store_fp32(a->output + row * columns + i, some, y);
            store(a->rounded + row * columns + i, some, y);
        }
    }
}

EXPORT void norm(const void *input, const void *weight, const void *bias, void *output, void *rounded, void *means,
                 void *scales, int64_t rows, int64_t columns, float epsilon, int threads) {
    Norm arguments = {.input = input, .weight = weight, .bias = bias, .output = output, .rounded = rounded,
                      .means = means, .scales = scales, .columns = columns, .epsilon = epsilon};
    in_threads(threads, norm_loop, &arguments, rows);
}

static inline __m512 grad_at(const Norm *a, int64_t place, __mmask16 some) {
    __m512 grad = _mm512_setzero_ps();
    if (a->grad)
        grad = load_fp32(a->grad + place, some);
    if (a->rounded_grad)
        grad = _mm512_add_ps(grad, load(a->rounded_grad + place, some));
    return grad;
}

static void norm_backward_loop(const void *pointer, int64_t row, int64_t end, int thread) {
    const Norm *a = pointer;
    const int64_t columns = a->columns;
    float *of_weight = a->sums + 2 * columns * thread, *of_bias = of_weight + columns;
    for (; row < end; row++) {
        const float *x = a->input + row * columns;
        const __m512 mean = _mm512_set1_ps(a->means ? a->means[row] : 0), scale = _mm512_set1_ps(a->scales[row]);
        __m512 sum = _mm512_setzero_ps(), along = _mm512_setzero_ps();
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 grad = grad_at(a, row * columns + i, some);
            __m512 normal = _mm512_mul_ps(_mm512_sub_ps(load_fp32(x + i, some), mean), scale);
            __m512 old = load_fp32(of_weight + i, some);
            store_fp32(of_weight + i, some, _mm512_fmadd_ps(grad, normal, old));
            if (a->means)
                store_fp32(of_bias + i, some, _mm512_add_ps(grad, load_fp32(of_bias + i, some)));
            if (a->weight)
                grad = _mm512_mul_ps(grad, load_fp32(a->weight + i, some));
            sum = _mm512_mask_add_ps(sum, some, sum, grad);
            along = _mm512_mask3_fmadd_ps(grad, normal, along, some);
        }
        const __m512 shift = _mm512_set1_ps(a->means ? _mm512_reduce_add_ps(sum) / columns : 0);
        const __m512 slope = _mm512_set1_ps(_mm512_reduce_add_ps(along) / columns);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 grad = grad_at(a, row * columns + i, some);
            __m512 normal = _mm512_mul_ps(_mm512_sub_ps(load_fp32(x + i, some), mean), scale);
            if (a->weight)
                grad = _mm512_mul_ps(grad, load_fp32(a->weight + i, some));
            grad = _mm512_fnmadd_ps(normal, slope, _mm512_sub_ps(grad, shift));
            store_fp32(a->output + row * columns + i, some, _mm512_mul_ps(grad, scale));
        }
    }
}

/* `sums`: zeros, for each thread of the gradients of weight and bias. */
EXPORT void norm_backward(const void *input, const void *weight, const void *grad, const void *rounded_grad,
                          const void *means, const void *scales, void *output, void *sums, int64_t rows,
                          int64_t columns, int threads) {
    Norm arguments = {.input = input, .weight = weight, .grad = grad, .rounded_grad = rounded_grad,
                      .output = output, .means = (float *)means, .scales = (float *)scales, .sums = sums,
                      .columns = columns};
    in_threads(threads, norm_backward_loop, &arguments, rows);
}
