#include "vectors.h"

/* AdamW (Loshchilov and Hutter 2019) as torch's fused kernel computes it. All fused multiply-adds are
 * explicit and no operation is an approximation: AVX2 and AVX-512 find the same bits. */

#define PIECE 1024 /* elements */

typedef struct {
    float decay;        /* of a weight in this step: 1 - learning rate * weight decay */
    float gradients_by; /* by what gradients are multiplied */
    float beta1, new1, beta2, new2; /* new1: 1 - beta1 */
    float rate;                     /* learning rate / (1 - beta1^step) */
    float correction;               /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
} Numbers;

typedef struct {
    float *weights;
    const float *gradients;
    float *means, *squares; /* exp_avg, exp_avg_sq */
    bf16 *copy;             /* of the weights, or NULL */
    int64_t count;
    Numbers numbers;
} Step;

static void adamw_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Step *a = pointer;
    const Numbers *n = &a->numbers;
    const vec decay = all(n->decay), gradients_by = all(n->gradients_by);
    const vec beta1 = all(n->beta1), new1 = all(n->new1), beta2 = all(n->beta2), new2 = all(n->new2);
    const vec rate = all(n->rate), correction = all(n->correction), epsilon = all(n->epsilon);
    int64_t end = end_piece * PIECE < a->count ? end_piece * PIECE : a->count;
    REGISTERS(i, some, first_piece * PIECE, end, {
        vec gradient = mul(load_fp32(a->gradients + i, some), gradients_by);
        vec mean = mul_add(load_fp32(a->means + i, some), beta1, mul(gradient, new1));
        vec square = mul_add(load_fp32(a->squares + i, some), beta2, mul(mul(gradient, gradient), new2));
        vec step = quotient(mean, mul_add(square_root(square), correction, epsilon));
        vec weight = neg_mul_add(rate, step, mul(load_fp32(a->weights + i, some), decay));
        store_fp32(a->weights + i, some, weight);
        store_fp32(a->means + i, some, mean);
        store_fp32(a->squares + i, some, square);
        if (a->copy)
            store_bf16(a->copy + i, some, weight);
    });
}

EXPORT void adamw(float *weights, const float *gradients, float *means, float *squares, bf16 *copy, int64_t count,
                  float decay, float gradients_by, float beta1, float new1, float beta2, float new2, float rate,
                  float correction, float epsilon, int threads) {
    Numbers numbers = {decay, gradients_by, beta1, new1, beta2, new2, rate, correction, epsilon};
    Step arguments = {weights, gradients, means, squares, copy, count, numbers};
    in_threads(threads, adamw_pieces, &arguments, (count + PIECE - 1) / PIECE);
}
