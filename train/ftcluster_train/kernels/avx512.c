/* Dropout, softmax and cross entropy in few passes over memory, for CPUs with AVX-512 (F, BW, DQ, VL).
 *
 * Compiled by ../../hatch_build.py and called by avx512.py, which says what each function does.
 * Numbers are bf16 (uint16_t) or fp32 in memory and fp32 in between; results are rounded to the
 * nearest, as torch rounds. No function of a library is called but those of OpenMP that torch has
 * loaded: so there is one pool of threads, and the file works with any C library.
 */

#include <immintrin.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define LONGEST 4096 /* columns of a row; avx512.py has the same number */
#define PIECE 2048   /* elements of a mask that are drawn at once: a multiple of 4 */
#define WORDS(elements) ((elements) / 32 + 3)

typedef uint16_t bf16;
typedef void (*Loop)(const void *arguments, int64_t begin, int64_t end);

static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*omp_thread_number)(void), (*omp_threads)(void);

EXPORT void use_openmp(void *parallel, void *thread_number, void *threads) {
    gomp_parallel = parallel;
    omp_thread_number = thread_number;
    omp_threads = threads;
}

typedef struct {
    Loop loop;
    const void *arguments;
    int64_t count;
} Work;

static void share(void *pointer) {
    const Work *work = pointer;
    int64_t number = omp_thread_number(), threads = omp_threads();
    work->loop(work->arguments, work->count * number / threads, work->count * (number + 1) / threads);
}

static void in_threads(int threads, Loop loop, const void *arguments, int64_t count) {
    Work work = {loop, arguments, count};
    if (threads > 1)
        gomp_parallel(share, &work, threads, 0);
    else
        loop(arguments, 0, count);
}

/* What decides which elements are kept; see dropout.py. */
typedef struct {
    uint64_t seed;
    int32_t threshold;
    float scale;
} Drop;

/* SplitMix64's function of eight states (Steele, Lea and Flood 2014). */
static inline __m512i mix(__m512i z) {
    const __m512i first = _mm512_set1_epi64(0xBF58476D1CE4E5B9), second = _mm512_set1_epi64(0x94D049BB133111EB);
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), first);
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), second);
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

/* A bit for each of `count` elements from number `begin` on, the first one at bit begin % 4:
 * whether it is kept. */
static inline void draw(uint32_t *bits, int64_t begin, int64_t count, Drop drop) {
    const uint64_t gamma = 0x9E3779B97F4A7C15;
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i step = _mm512_set1_epi64(8 * gamma), level = _mm512_set1_epi16(drop.threshold);
    __m512i state = _mm512_add_epi64(_mm512_mullo_epi64(lanes, _mm512_set1_epi64(gamma)),
                                     _mm512_set1_epi64(drop.seed + begin / 4 * gamma));
    int64_t words = (begin % 4 + count + 31) / 32;
    for (int64_t i = 0; i < words; i++, state = _mm512_add_epi64(state, step))
        bits[i] = _mm512_cmpge_epi16_mask(mix(state), level);
    bits[words] = 0;
}

static inline __mmask16 bits_at(const uint32_t *bits, int64_t place) {
    uint64_t two = bits[place / 32] | (uint64_t)bits[place / 32 + 1] << 32;
    return two >> place % 32;
}

static inline __mmask16 first(int64_t left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

static inline __m512 widened(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

static inline __m256i rounded(__m512 values) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(bits, 16), nan, _mm512_set1_epi32(0x7fc0)));
}

static inline __m512 load(const bf16 *x, __mmask16 some) { return widened(_mm256_maskz_loadu_epi16(some, x)); }

static inline void store(bf16 *x, __mmask16 some, __m512 values) {
    _mm256_mask_storeu_epi16(x, some, rounded(values));
}

/* exp(x) for x <= 0, to 2 units in the last place: a polynomial of degree 7 on |x| <= log(2) / 2, with
 * Taylor's coefficients. */
static inline __m512 exponential(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x); /* NaN stays: it is the second */
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x); /* log(2) in two parts */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
    __m512 y = _mm512_set1_ps(1.0f / 5040);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 720));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 120));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 24));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 6));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.5f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

typedef struct {
    const void *input;
    void *output;
    int64_t count;
    Drop drop;
} Dropout;

#define DROPOUT(name, type, read, write)                                                                        \
    static void name##_loop(const void *pointer, int64_t first_piece, int64_t end_piece) {                      \
        const Dropout *a = pointer;                                                                             \
        const type *input = a->input;                                                                           \
        type *output = a->output;                                                                               \
        const __m512 scale = _mm512_set1_ps(a->drop.scale);                                                     \
        uint32_t bits[WORDS(PIECE)];                                                                            \
        for (int64_t begin = first_piece * PIECE; begin < end_piece * PIECE; begin += PIECE) {                  \
            int64_t end = begin + PIECE < a->count ? begin + PIECE : a->count;                                  \
            draw(bits, begin, end - begin, a->drop);                                                            \
            for (int64_t i = begin; i < end; i += 16) {                                                         \
                __mmask16 some = first(end - i);                                                                \
                /* times 0, not 0: so that NaN stays */                                                         \
                __m512 by = _mm512_maskz_mov_ps(bits_at(bits, i - begin), scale);                               \
                write(output + i, some, _mm512_mul_ps(read(some, input + i), by));                              \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    EXPORT void name(const void *input, void *output, int64_t count, uint64_t seed, int threshold, float scale, \
                     int threads) {                                                                             \
        Dropout arguments = {input, output, count, {seed, threshold, scale}};                                   \
        in_threads(threads, name##_loop, &arguments, (count + PIECE - 1) / PIECE);                              \
    }

#define LOAD(some, x) load(x, some)
DROPOUT(dropout_bf16, bf16, LOAD, store)
DROPOUT(dropout_fp32, float, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps)

typedef struct {
    bf16 *values, *others;
    int64_t columns;
    Drop drop;
} Rows;

/* in all lanes */
static inline __m512 largest_of(const bf16 *values, int64_t columns) {
    __m512 largest = _mm512_set1_ps(-__builtin_inff());
    for (int64_t i = 0; i < columns; i += 16) {
        __mmask16 some = first(columns - i);
        largest = _mm512_mask_max_ps(largest, some, largest, load(values + i, some));
    }
    return _mm512_set1_ps(_mm512_reduce_max_ps(largest));
}

static void softmax_dropout_loop(const void *pointer, int64_t row, int64_t end) {
    const Rows *a = pointer;
    const int64_t columns = a->columns;
    const __m512 scale = _mm512_set1_ps(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float powers[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * columns;
        bf16 *scores = a->values + begin, *dropped = a->others + begin;
        __m512 largest = largest_of(scores, columns), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 power = exponential(_mm512_sub_ps(load(scores + i, some), largest));
            _mm512_storeu_ps(powers + i, power);
            sum = _mm512_mask_add_ps(sum, some, sum, power);
        }
        __m512 inverse = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sum));
        draw(bits, begin, columns, a->drop);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m256i probability = rounded(_mm512_mul_ps(_mm512_loadu_ps(powers + i), inverse));
            _mm256_mask_storeu_epi16(scores + i, some, probability);
            __m512 by = _mm512_maskz_mov_ps(bits_at(bits, begin % 4 + i), scale);
            store(dropped + i, some, _mm512_mul_ps(widened(probability), by));
        }
    }
}

EXPORT void softmax_dropout(void *scores, void *dropped, int64_t rows, int64_t columns, uint64_t seed, int threshold,
                            float scale, int threads) {
    Rows arguments = {scores, dropped, columns, {seed, threshold, scale}};
    in_threads(threads, softmax_dropout_loop, &arguments, rows);
}

static void softmax_dropout_backward_loop(const void *pointer, int64_t row, int64_t end) {
    const Rows *a = pointer;
    const int64_t columns = a->columns;
    const __m512 scale = _mm512_set1_ps(a->drop.scale);
    uint32_t bits[WORDS(LONGEST)];
    float kept[LONGEST];
    for (; row < end; row++) {
        int64_t begin = row * columns;
        bf16 *grad = a->values + begin;
        const bf16 *probabilities = a->others + begin;
        __m512 sum = _mm512_setzero_ps();
        draw(bits, begin, columns, a->drop);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 by = _mm512_maskz_mov_ps(bits_at(bits, begin % 4 + i), scale);
            __m512 value = _mm512_mul_ps(load(grad + i, some), by);
            _mm512_storeu_ps(kept + i, value);
            sum = _mm512_fmadd_ps(value, load(probabilities + i, some), sum);
        }
        sum = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 of_score = _mm512_sub_ps(_mm512_loadu_ps(kept + i), sum);
            store(grad + i, some, _mm512_mul_ps(load(probabilities + i, some), of_score));
        }
    }
}

EXPORT void softmax_dropout_backward(void *grad, const void *probabilities, int64_t rows, int64_t columns,
                                     uint64_t seed, int threshold, float scale, int threads) {
    Rows arguments = {grad, (bf16 *)probabilities, columns, {seed, threshold, scale}};
    in_threads(threads, softmax_dropout_backward_loop, &arguments, rows);
}

typedef struct {
    bf16 *logits;
    const int64_t *targets;
    const float *factors;
    float *totals, *scores;
    int64_t columns, stride;
} Losses;

static void cross_entropy_loop(const void *pointer, int64_t row, int64_t end) {
    const Losses *a = pointer;
    const int64_t columns = a->columns;
    for (; row < end; row++) {
        bf16 *logits = a->logits + row * a->stride;
        __m512 largest = largest_of(logits, columns), sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 power = exponential(_mm512_sub_ps(load(logits + i, some), largest));
            sum = _mm512_mask_add_ps(sum, some, sum, power);
        }
        float total = _mm512_reduce_add_ps(sum), factor = a->factors ? a->factors[row] : 1;
        __m512 of_target = _mm512_sub_ps(load(logits + a->targets[row], 1), largest);
        a->totals[row] = total;
        a->scores[row] = _mm512_cvtss_f32(of_target);
        /* powers are computed again: a row of them would leave no room in a small cache */
        __m512 by = _mm512_set1_ps(factor / total);
        for (int64_t i = 0; i < columns; i += 16) {
            __mmask16 some = first(columns - i);
            __m512 power = exponential(_mm512_sub_ps(load(logits + i, some), largest));
            store(logits + i, some, _mm512_mul_ps(power, by));
        }
        __m512 probability = _mm512_mul_ps(exponential(of_target), by);
        store(logits + a->targets[row], 1, _mm512_sub_ps(probability, _mm512_set1_ps(factor)));
        for (int64_t i = columns; i < a->stride; i += 16)
            store(logits + i, first(a->stride - i), _mm512_setzero_ps());
    }
}

EXPORT void cross_entropy(void *logits, const void *targets, const void *factors, void *totals, void *scores,
                          int64_t rows, int64_t columns, int64_t stride, int threads) {
    Losses arguments = {logits, targets, factors, totals, scores, columns, stride};
    in_threads(threads, cross_entropy_loop, &arguments, rows);
}
