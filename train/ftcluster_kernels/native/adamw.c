#include "vectors.h"

/* AdamW (Loshchilov and Hutter 2019), as in torch's fused kernel. All fused multiply-adds are explicit and all
 * operations round correctly, so AVX2 and AVX-512 compute the same bits.
 *
 * A weight whose gradient and moments are 0 only decays. In an embedding, this is true of all tokens that the data has
 * not contained yet, and often of most rows. Skipping these weights needs 12 instead of 30 bytes of memory traffic. */

#define PIECE 1024 /* number of elements that a thread updates at once */

typedef struct {
    float decay;                    /* factor for each weight: 1 - learning rate * weight decay */
    float gradient_scale;           /* factor for each gradient */
    float beta1, new1, beta2, new2; /* new1: 1 - beta1 */
    float rate;                     /* learning rate / (1 - beta1^step) */
    float correction;               /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
} Hyperparameters;

typedef struct {
    float *weights;
    const float *gradients;
    float *means, *squares; /* torch's exp_avg and exp_avg_sq */
    bf16 *copy;             /* the weights in bf16, which this loop keeps up to date, or NULL */
    int64_t count;
    Hyperparameters hyperparameters;
} Step;

static void adamw_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Step *args = pointer;
    const Hyperparameters *values = &args->hyperparameters;
    const vec decay = broadcast(values->decay), gradient_scale = broadcast(values->gradient_scale);
    const vec beta1 = broadcast(values->beta1), new1 = broadcast(values->new1), beta2 = broadcast(values->beta2),
              new2 = broadcast(values->new2);
    const vec rate = broadcast(values->rate), correction = broadcast(values->correction),
              epsilon = broadcast(values->epsilon);
    int64_t end = end_piece * PIECE < args->count ? end_piece * PIECE : args->count;
    const int skips = values->decay == 1.0f && values->epsilon > 0; /* with an epsilon of 0, 0 / 0 is NaN */
    REGISTERS(i, active, first_piece * PIECE, end, {
        vec gradient = load_fp32(args->gradients + i, active), mean = load_fp32(args->means + i, active);
        vec square = load_fp32(args->squares + i, active);
        if (!skips || !all_bits_zero(gradient, mean, square)) {
            gradient = mul(gradient, gradient_scale);
            mean = mul_add(mean, beta1, mul(gradient, new1));
            square = mul_add(square, beta2, mul(mul(gradient, gradient), new2));
            vec step = quotient(mean, mul_add(square_root(square), correction, epsilon));
            vec weight = neg_mul_add(rate, step, mul(load_fp32(args->weights + i, active), decay));
            store_fp32(args->weights + i, active, weight);
            store_fp32(args->means + i, active, mean);
            store_fp32(args->squares + i, active, square);
            if (args->copy)
                store_bf16(args->copy + i, active, weight);
        }
    });
}

EXPORT void adamw(float *weights, const float *gradients, float *means, float *squares, bf16 *copy, int64_t count,
                  float decay, float gradient_scale, float beta1, float new1, float beta2, float new2, float rate,
                  float correction, float epsilon, int threads) {
    Hyperparameters hyperparameters = {decay, gradient_scale, beta1, new1, beta2, new2, rate, correction, epsilon};
    Step arguments = {weights, gradients, means, squares, copy, count, hyperparameters};
    in_threads(threads, adamw_pieces, &arguments, (count + PIECE - 1) / PIECE);
}
