#include "vectors.h"

#include "fma.h"
#include "heads.h"

/* Attention by multiply-adds, of vectors in fp32, and in bf16 where the CPU adds two products of these at once: then a
 * word has two numbers of a vector that are side by side, or those of two vectors, see fma.h. */

#ifdef __AVX512F__
#define HIGH 12 /* queries at once: sums of HIGH x WIDE numbers, so that sizes of 32, 64, 96 fit */
#define REGISTERS_WIDE 2
#else
#define HIGH 6
#define REGISTERS_WIDE 1
#endif
#define WIDE (16 * REGISTERS_WIDE)
#define MULTIPLE 32 /* of which sizes are, and lengths of packed rows */

/* The buffers of a thread. */
typedef struct {
    float *scores;               /* HIGH x keys: attention scores, backward the gradients of probabilities */
    float *sums;                 /* HIGH x size: sums of products on their way to the output */
    word *copies;                /* vectors of a head, where no word has two numbers of theirs or they share keys */
    word *right_along_size;      /* right slivers for sums over `size`: of keys, backward of values */
    word *right_along_keys;      /* right slivers for sums over keys: of values, backward of keys */
    word *left_along_size;       /* left slivers of queries, backward of the gradients of outputs */
    word *weights;               /* a left sliver of what vectors are summed by: probabilities or gradients of scores */
    word *queries, *grads;       /* backward: right slivers for sums over queries */
    char *grad_scores;           /* backward: queries x keys */
    char *dropped_probabilities; /* after dropout: of a sliver of queries, backward queries x keys */
} Own;

/* Set the places of the buffers from `at` on, where numbers in bf16 need less; return the bytes of all. */
static int64_t own_of(const Heads *a, char *at, Own *buffers) {
    const int64_t padded_keys = up_to(a->keys, MULTIPLE), padded_queries = up_to(a->queries, HIGH), longest = most(padded_keys, padded_queries);
    const char *begin = at;
#define TAKE(name, type, count) buffers->name = (type *)at, at += up_to((count) * (int64_t)sizeof(type), 64)
    TAKE(scores, float, HIGH * padded_keys);
    TAKE(sums, float, HIGH * a->size);
    TAKE(copies, word, longest * a->size);
    TAKE(right_along_size, word, padded_keys * a->size);
    TAKE(right_along_keys, word, padded_keys * a->size);
    TAKE(left_along_size, word, padded_queries * a->size + SQUARE);
    TAKE(weights, word, HIGH * longest + SQUARE);
    TAKE(queries, word, padded_queries * a->size);
    TAKE(grads, word, padded_queries * a->size);
    TAKE(grad_scores, char, padded_queries * padded_keys * (int64_t)sizeof(float));
    TAKE(dropped_probabilities, char, padded_queries * padded_keys * (int64_t)sizeof(float));
    return up_to(at - begin, 4096);
}

/* Which number a vector begins with, from `x.at` on; `of_queries`: heads that share keys have theirs beside each other. */
INLINE int64_t place_of(const Heads *a, Vectors x, Head h, int64_t i, int of_queries) {
    if (of_queries && shares_keys(a))
        return (a->starts[h.sample] + i / a->per_key) * x.row_stride + (h.head * a->per_key + i % a->per_key) * x.head_stride;
    return (a->starts ? a->starts[h.sample] * x.row_stride : h.sample * x.sample_stride) + h.head * x.head_stride + i * x.row_stride;
}

INLINE int64_t words_of(int64_t numbers, int type) { return parts(numbers, in_word(type)); }

/* `count` vectors, where they are or in `copies`; `apart`: words from one to the next. */
INLINE const word *vectors_of(const Heads *a, Vectors x, Head h, int64_t count, int of_queries, word *copies, int64_t *apart, int type) {
    *apart = x.row_stride / in_word(type);
    if (x.row_stride % in_word(type) == 0 && !(of_queries && shares_keys(a)))
        return (const void *)((const char *)x.at + place_of(a, x, h, 0, of_queries) * size_of(type));
    *apart = words_of(a->size, type);
    for (int64_t i = 0; i < count; i++) {
        const char *from = (const char *)x.at + place_of(a, x, h, i, of_queries) * size_of(type);
        for (int64_t k = 0; k < *apart; k += 16)
            store_fp32((float *)copies + i * *apart + k, 0xffff, load_fp32((const float *)from + k, 0xffff));
    }
    return copies;
}

/* Slivers of `wide` of `count` vectors, along their numbers. */
INLINE void pack_vectors(const word *from, int64_t apart, int64_t count, int64_t words, int wide, word *to) {
    for (int64_t i = 0; i < count; i += wide)
        pack_along(from + i * apart, apart, count - i, words, wide, to + i * words);
}

/* Right slivers for sums of `count` vectors. */
INLINE void pack_summed(const word *from, int64_t apart, int64_t count, int64_t size, int type, word *to) {
    pack_across(from, apart * in_word(type), size, size / WIDE, count, WIDE, type, to);
}

/* A left sliver times `slivers` right ones, each of which begins `apart_right` behind the one before. */
INLINE void multiply_all(const word *left, const word *right, int64_t apart_right, int64_t words, int64_t slivers, float *to,
                         int64_t apart, int type) {
    for (int64_t j = 0; j < slivers; j++)
        multiply(left, right + j * apart_right, words, to + j * WIDE, apart, 1, (const char *)right, 0, type, HIGH, REGISTERS_WIDE);
}

/* `rows` sums of `size` numbers, times a factor, to vectors from `first` on. */
INLINE void put(const Heads *a, const float *sums, vec factor, Vectors x, Head h, int64_t first, int64_t rows, int of_queries, int type) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t place = place_of(a, x, h, first + i, of_queries);
        for (int64_t k = 0; k < a->size; k += 16)
            store_number(x.at, place + k, 0xffff, mul(load_fp32(sums + i * a->size + k, 0xffff), factor), type);
    }
}

/* Write the probabilities of a row of scores to their place, and those after dropout with zeros up to `columns`. The scores
 * are overwritten. */
INLINE void softmax_row(const Heads *a, Head h, int64_t number, int64_t row, float *attention_scores, char *dropped, int64_t columns, int type) {
    uint32_t kept_bits[WORDS(LONGEST)];
    const int64_t place = h.place + row * h.keys, bias_place = h.sample * a->bias_sample + h.head * a->bias_head + row * a->bias_row;
    const int64_t seen = a->hidden && a->hidden[number * a->queries + row] ? 0 : seen_by(a, h, row);
    vec row_max = all(-__builtin_inff()), row_sum = zeros();
    REGISTERS(k, some, 0, seen, {
        vec score = mul(load_fp32(attention_scores + k, 0xffff), all(a->scale));
        if (a->bias)
            score = add(score, load(a->bias, bias_place + k, some, type));
        store_fp32(attention_scores + k, 0xffff, score);
        row_max = larger_some(some, row_max, score);
    });
    row_max = all(largest_in(row_max));
    REGISTERS(k, some, 0, seen, {
        vec power = exponential(sub(load_fp32(attention_scores + k, 0xffff), row_max), type);
        store_fp32(attention_scores + k, 0xffff, power);
        row_sum = add_some(some, row_sum, power);
    });
    const vec inverse_sum = all(1.0f / sum_of(row_sum));
    if (a->drops)
        draw(kept_bits, place, seen, a->drop);
    REGISTERS(k, some, 0, seen, {
        vec probability = choose(some, mul(load_fp32(attention_scores + k, 0xffff), inverse_sum), zeros());
        store_number(a->probabilities, place + k, some, probability, type);
        if (type == BF16)
            probability = load(a->probabilities, place + k, some, type);
        if (a->drops)
            probability = mul(probability, choose(bits_at(kept_bits, place % 4 + k), all(a->drop.scale), zeros()));
        store_number(dropped, k, 0xffff, probability, type);
    });
    REGISTERS(k, some, seen, h.keys, { store_number(a->probabilities, place + k, some, zeros(), type); });
    for (int64_t k = up_to(seen, 16); k < columns; k += 16)
        store_number(dropped, k, 0xffff, zeros(), type);
}

/* A block of the forward pass is a sliver of HIGH queries:
 *
 *                        keys: slivers of WIDE                  values: slivers of WIDE numbers
 *                        +---+---+---+---+                      +---+---+
 *                  size  |   |   |   |   |                 keys |   |   |
 *                        +---+---+---+---+                      |   |   |
 *              size            keys         softmax     keys    +---+---+
 *              +----+    +---------------+  of rows  +--------+    size
 *         HIGH |    | x  | scores        |  ------>  | weights| x        -->  HIGH rows of the output
 *              +----+    +---------------+           +--------+
 *
 * The backward pass has the same blocks, see heads.c. */
INLINE void forward(const Heads *a, int thread, int type) {
    Own buffers;
    own_of(a, a->own + thread * a->own_bytes, &buffers);
    const int64_t size = a->size, words = words_of(size, type), columns = up_to(a->keys, MULTIPLE), apart_rows = words_of(columns, type);
    for (int64_t number, apart; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const word *from = vectors_of(a, a->key, h, h.length, 0, buffers.copies, &apart, type);
        pack_vectors(from, apart, h.length, words, WIDE, buffers.right_along_size);
        from = vectors_of(a, a->value, h, h.length, 0, buffers.copies, &apart, type);
        pack_summed(from, apart, h.length, size, type, buffers.right_along_keys);
        from = vectors_of(a, a->query, h, h.queries, 1, buffers.copies, &apart, type);
        pack_vectors(from, apart, h.queries, words, HIGH, buffers.left_along_size);
        for (int64_t row = 0; row < h.queries; row += HIGH) {
            const int64_t rows = least(HIGH, h.queries - row), seen = seen_by(a, h, row + rows - 1), used = up_to(seen, MULTIPLE);
            multiply_all(buffers.left_along_size + row * words, buffers.right_along_size, WIDE * words, words, parts(seen, WIDE), buffers.scores,
                         columns, type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row(a, h, number, row + i, buffers.scores + i * columns, buffers.dropped_probabilities + i * columns * size_of(type),
                            used, type);
            pack_along((const word *)buffers.dropped_probabilities, apart_rows, rows, words_of(used, type), HIGH, buffers.weights);
            multiply_all(buffers.weights, buffers.right_along_keys, WIDE * words_of(h.length, type), words_of(seen, type), size / WIDE,
                         buffers.sums, size, type);
            put(a, buffers.sums, all(a->kept), a->output, h, row, rows, 1, type);
        }
    }
}

/* Write the gradients of a row of scores, from those of its probabilities, and the probabilities after dropout, both with
 * zeros up to `columns`. */
INLINE void softmax_row_back(const Heads *a, Head h, int64_t row, const float *of_probabilities, char *of_scores, char *dropped,
                             int64_t columns, int type) {
    uint32_t kept_bits[WORDS(LONGEST)];
    const int64_t seen = seen_by(a, h, row), place = h.place + row * h.keys;
    const vec kept_scale = all(a->drops ? a->kept * a->drop.scale : a->kept);
    vec row_dot = zeros();
    if (a->drops)
        draw(kept_bits, place, seen, a->drop);
    REGISTERS(k, some, 0, seen, {
        vec factor = a->drops ? choose(bits_at(kept_bits, place % 4 + k), kept_scale, zeros()) : kept_scale;
        vec after_dropout = mul(load(a->probabilities, place + k, some, type), factor);
        store_number(dropped, k, 0xffff, after_dropout, type);
        row_dot = add_some(some, row_dot, mul(after_dropout, load_fp32(of_probabilities + k, 0xffff)));
    });
    row_dot = all(sum_of(row_dot));
    REGISTERS(k, some, 0, seen, {
        vec factor = a->drops ? choose(bits_at(kept_bits, place % 4 + k), kept_scale, zeros()) : kept_scale;
        vec grad = sub(mul(load_fp32(of_probabilities + k, 0xffff), factor), row_dot);
        vec probability = load(a->probabilities, place + k, some, type);
        store_number(of_scores, k, 0xffff, choose(some, mul(mul(probability, grad), all(a->scale)), zeros()), type);
    });
    for (int64_t k = up_to(seen, 16); k < columns; k += 16) {
        store_number(dropped, k, 0xffff, zeros(), type);
        store_number(of_scores, k, 0xffff, zeros(), type);
    }
}

INLINE void backward(const Heads *a, int thread, int type) {
    Own buffers;
    own_of(a, a->own + thread * a->own_bytes, &buffers);
    const int64_t size = a->size, words = words_of(size, type), columns = up_to(a->keys, MULTIPLE), row_bytes = columns * size_of(type);
    for (int64_t number, apart; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const word *from = vectors_of(a, a->value, h, h.length, 0, buffers.copies, &apart, type);
        pack_vectors(from, apart, h.length, words, WIDE, buffers.right_along_size);
        from = vectors_of(a, a->key, h, h.length, 0, buffers.copies, &apart, type);
        pack_summed(from, apart, h.length, size, type, buffers.right_along_keys);
        from = vectors_of(a, a->query, h, h.queries, 1, buffers.copies, &apart, type);
        pack_summed(from, apart, h.queries, size, type, buffers.queries);
        from = vectors_of(a, a->of_output, h, h.queries, 1, buffers.copies, &apart, type);
        pack_summed(from, apart, h.queries, size, type, buffers.grads);
        pack_vectors(from, apart, h.queries, words, HIGH, buffers.left_along_size);
        for (int64_t row = 0; row < h.queries; row += HIGH) {
            const int64_t rows = least(HIGH, h.queries - row), seen = seen_by(a, h, row + rows - 1);
            multiply_all(buffers.left_along_size + row * words, buffers.right_along_size, WIDE * words, words, parts(seen, WIDE), buffers.scores,
                         columns, type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row_back(a, h, row + i, buffers.scores + i * columns, buffers.grad_scores + (row + i) * row_bytes,
                                 buffers.dropped_probabilities + (row + i) * row_bytes, up_to(h.keys, MULTIPLE), type);
            pack_along((const word *)(buffers.grad_scores + row * row_bytes), words_of(columns, type), rows,
                       words_of(up_to(seen, MULTIPLE), type), HIGH, buffers.weights);
            multiply_all(buffers.weights, buffers.right_along_keys, WIDE * words_of(h.length, type), words_of(seen, type), size / WIDE,
                         buffers.sums, size, type);
            put(a, buffers.sums, all(1.0f), a->of_query, h, row, rows, 1, type);
        }
        for (int64_t first_key = 0; first_key < h.keys; first_key += HIGH) {
            const int64_t block_keys = least(HIGH, h.keys - first_key);
            const int64_t words_before = a->causal ? first_key * a->per_key / in_word(type) : 0;
            const int64_t depth = h.queries - words_before * in_word(type);
            for (int of_values = 0; of_values < 2; of_values++) {
                const char *matrix = (of_values ? buffers.dropped_probabilities : buffers.grad_scores) + words_before * in_word(type) * row_bytes +
                                     first_key * size_of(type);
                pack_across(matrix, columns, block_keys, 1, depth, HIGH, type, buffers.weights);
                multiply_all(buffers.weights, (of_values ? buffers.grads : buffers.queries) + words_before * WIDE, WIDE * words_of(h.queries, type),
                             words_of(depth, type), size / WIDE, buffers.sums, size, type);
                put(a, buffers.sums, all(1.0f), of_values ? a->of_value : a->of_key, h, first_key, block_keys, 0, type);
            }
        }
    }
}

#define LOOP(name, pass, type) \
    static void name(const void *a, int64_t begin, int64_t end, int thread) { pass(a, thread, type); }
LOOP(forward_fp32, forward, FP32)
LOOP(backward_fp32, backward, FP32)
#ifdef WITH_AMX
LOOP(forward_bf16, forward, BF16)
LOOP(backward_bf16, backward, BF16)
#endif

/* Bytes of `own` for a thread. */
EXPORT int64_t heads_fma_bytes(const Heads *a) {
    Own buffers;
    return own_of(a, 0, &buffers);
}

/* `size` is a multiple of 32, and there are at most LONGEST keys; `own` starts on a cache line. BF16: only on a CPU with
 * AVX512-BF16. */
EXPORT void heads_fma(Heads *a, int back, int type, int threads) {
    int64_t next = 0;
    a->next = &next;
    Loop loop = back ? backward_fp32 : forward_fp32;
#ifdef WITH_AMX
    if (type == BF16)
        loop = back ? backward_bf16 : forward_bf16;
#endif
    in_shares(threads, loop, a, threads);
}
