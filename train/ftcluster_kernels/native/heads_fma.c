#include "vectors.h"

#include "fma.h"
#include "heads.h"

/* Attention by multiply-adds: for vectors in fp32, and in bf16 on CPUs with AVX512-BF16. A word of bf16 contains two
 * adjacent elements of a vector, or the same element of two vectors, see fma.h. */

#ifdef __AVX512F__
#define BLOCK_ROWS 12 /* queries of a block; blocks have 32 columns, so `size` can be any multiple of 32 */
#define BLOCK_REGISTERS 2
#else
#define BLOCK_ROWS 6
#define BLOCK_REGISTERS 1
#endif
#define BLOCK_COLUMNS (16 * BLOCK_REGISTERS)
#define MULTIPLE 32 /* `size` and the padded lengths of rows are multiples of this number */

/* The buffers of a thread. A and B are the two factors of a matrix multiplication, see fma.h. */
typedef struct {
    float *scores;               /* BLOCK_ROWS x keys: attention scores; backward: gradients of probabilities */
    float *sums;                 /* BLOCK_ROWS x size: elements before they are rounded to the output */
    word *copies;                /* copied vectors of a head, if rows are not whole words or if heads share keys */
    word *b_along_size;          /* B, depth is `size`: keys; backward: values */
    word *b_along_keys;          /* B, depth is keys: values; backward: keys */
    word *a_along_size;          /* A, depth is `size`: queries; backward: gradients of outputs */
    word *weights;               /* A, depth is keys or queries: probabilities; backward: gradients of scores */
    word *queries, *grads;       /* backward: B, depth is queries: queries, and gradients of outputs */
    char *grad_scores;           /* backward: queries x keys */
    char *dropped_probabilities; /* after dropout: a block of queries; backward: queries x keys */
} Buffers;

/* Place the buffers at `next_buffer`, large enough for fp32; return the size of all buffers in bytes. */
static int64_t set_buffers(const Heads *args, char *next_buffer, Buffers *buffers) {
    const int64_t padded_keys = round_up(args->keys, MULTIPLE), padded_queries = round_up(args->queries, BLOCK_ROWS),
                  longest = max64(padded_keys, padded_queries);
    const char *first_buffer = next_buffer;
#define TAKE(name, type, count) \
    buffers->name = (type *)next_buffer, next_buffer += round_up((count) * (int64_t)sizeof(type), 64)
    TAKE(scores, float, BLOCK_ROWS * padded_keys);
    TAKE(sums, float, BLOCK_ROWS * args->size);
    TAKE(copies, word, longest * args->size);
    TAKE(b_along_size, word, padded_keys * args->size);
    TAKE(b_along_keys, word, padded_keys * args->size);
    TAKE(a_along_size, word, padded_queries * args->size + SQUARE);
    TAKE(weights, word, BLOCK_ROWS * longest + SQUARE);
    TAKE(queries, word, padded_queries * args->size);
    TAKE(grads, word, padded_queries * args->size);
    TAKE(grad_scores, char, (padded_queries * padded_keys + SQUARE) * (int64_t)sizeof(float));
    TAKE(dropped_probabilities, char, (padded_queries * padded_keys + SQUARE) * (int64_t)sizeof(float));
    return round_up(next_buffer - first_buffer, 4096);
}

/* Return the offset of a vector from `x.at`, in elements. `are_queries`: 1 for vectors of queries; if heads share keys,
 * these are ordered by token, then by head. */
INLINE int64_t offset_of(const Heads *args, Vectors x, Head h, int64_t number, int are_queries) {
    if (are_queries && shares_keys(args))
        return (args->starts[h.sample] + number / args->per_key) * x.row_stride +
               (h.head * args->per_key + number % args->per_key) * x.head_stride;
    return (args->starts ? args->starts[h.sample] * x.row_stride : h.sample * x.sample_stride) +
           h.head * x.head_stride + number * x.row_stride;
}

INLINE int64_t words_of(int64_t elements, int type) { return ceil_div(elements, in_word(type)); }

/* Return `count` vectors, in place or copied to `copies`, and set the distance in words between adjacent vectors. */
INLINE const word *vectors_of(const Heads *args, Vectors x, Head h, int64_t count, int are_queries, word *copies,
                              int64_t *word_stride, int type) {
    *word_stride = x.row_stride / in_word(type);
    if (x.row_stride % in_word(type) == 0 && !(are_queries && shares_keys(args)))
        return (const void *)((const char *)x.at + offset_of(args, x, h, 0, are_queries) * size_of(type));
    *word_stride = words_of(args->size, type);
    for (int64_t i = 0; i < count; i++) {
        const char *vector = (const char *)x.at + offset_of(args, x, h, i, are_queries) * size_of(type);
        for (int64_t k = 0; k < *word_stride; k += 16)
            store_fp32((float *)copies + i * *word_stride + k, 0xffff, load_fp32((const float *)vector + k, 0xffff));
    }
    return copies;
}

/* Pack `count` vectors as slivers, whose depth is `size`. */
INLINE void pack_vectors(const word *vectors, int64_t word_stride, int64_t count, int64_t depth_words, int sliver_width,
                         word *slivers) {
    for (int64_t i = 0; i < count; i += sliver_width)
        pack_along(vectors + i * word_stride, word_stride, count - i, depth_words, sliver_width,
                   slivers + i * depth_words);
}

/* Pack vectors as slivers of B, to compute weighted sums of these vectors. */
INLINE void pack_summed_vectors(const word *vectors, int64_t word_stride, int64_t count, int64_t size, int type,
                                word *b_slivers) {
    pack_across(vectors, word_stride * in_word(type), size, size / BLOCK_COLUMNS, count, BLOCK_COLUMNS, type,
                b_slivers);
}

/* Multiply a sliver of A, whose words are `a_stride` words apart, by `sliver_count` slivers of B, which are `b_stride`
 * words apart. Prefetch memory from `prefetched` on, unless it is NULL. */
INLINE void multiply_sliver(const word *a_sliver, int64_t a_stride, const word *b_slivers, int64_t b_stride,
                            int64_t depth_words, int64_t sliver_count, float *sums, int64_t sum_stride,
                            const char *prefetched, int type) {
    for (int64_t j = 0; j < sliver_count; j++)
        multiply_slivers(a_sliver, a_stride, b_slivers + j * b_stride, depth_words, sums + j * BLOCK_COLUMNS,
                         sum_stride, 1, prefetched ? prefetched + j * depth_words * 64 : (const char *)b_slivers,
                         prefetched ? 64 : 0, type, BLOCK_ROWS, BLOCK_REGISTERS);
}

/* Multiply `rows` vectors of sums by a factor and store them as vectors of `x`, beginning at `first_vector`. */
INLINE void store_vectors(const Heads *args, const float *sums, vec factor, Vectors x, Head h, int64_t first_vector,
                          int64_t rows, int are_queries, int type) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = offset_of(args, x, h, first_vector + row, are_queries);
        for (int64_t k = 0; k < args->size; k += 16)
            store_element(x.at, offset + k, 0xffff, mul(load_fp32(sums + row * args->size + k, 0xffff), factor), type);
    }
}

/* Store the probabilities of a row of scores. `dropped` gets the probabilities after dropout, followed by zeros up to
 * `columns`. The scores are overwritten. */
INLINE void softmax_row(const Heads *args, Head h, int64_t number, int64_t row, float *attention_scores, char *dropped,
                        int64_t columns, int type) {
    uint32_t kept_bits[WORDS(LONGEST)];
    const int64_t offset = h.offset + row * h.keys,
                  bias_place = h.sample * args->bias_sample + h.head * args->bias_head + row * args->bias_row;
    const int64_t seen_keys = args->hidden && args->hidden[number * args->queries + row] ? 0 : seen_by(args, h, row);
    vec row_max = broadcast(-__builtin_inff()), row_sum = zeros();
    REGISTERS(k, active, 0, seen_keys, {
        vec score = mul(load_fp32(attention_scores + k, 0xffff), broadcast(args->scale));
        if (args->bias)
            score = add(score, load(args->bias, bias_place + k, active, type));
        store_fp32(attention_scores + k, 0xffff, score);
        row_max = larger_active(active, row_max, score);
    });
    row_max = broadcast(largest_in(row_max));
    REGISTERS(k, active, 0, seen_keys, {
        vec score_exp = exponential(sub(load_fp32(attention_scores + k, 0xffff), row_max), type);
        store_fp32(attention_scores + k, 0xffff, score_exp);
        row_sum = add_active(active, row_sum, score_exp);
    });
    const vec inverse_sum = broadcast(1.0f / sum_of(row_sum));
    if (args->drops)
        draw(kept_bits, offset, seen_keys, args->drop);
    REGISTERS(k, active, 0, seen_keys, {
        vec probability = choose(active, mul(load_fp32(attention_scores + k, 0xffff), inverse_sum), zeros());
        store_element(dropped, k, 0xffff, probability, type);
        if (args->probabilities)
            store_element(args->probabilities, offset + k, active, probability, type);
        if (args->drops) {
            vec factor = choose(bits_at(kept_bits, offset % 4 + k), broadcast(args->drop.scale), zeros());
            store_element(dropped, k, 0xffff, mul(load(dropped, k, 0xffff, type), factor), type);
        }
    });
    if (args->probabilities)
        REGISTERS(k, active, seen_keys, h.keys,
                  { store_element(args->probabilities, offset + k, active, zeros(), type); });
    for (int64_t k = round_up(seen_keys, 16); k < columns; k += 16)
        store_element(dropped, k, 0xffff, zeros(), type);
}

/* A block of the forward pass is a sliver of BLOCK_ROWS queries:
 *
 *                        keys: b_along_size                     values: b_along_keys
 *                        +---+---+---+---+                      +---+---+
 *                  size  |   |   |   |   |                 keys |   |   |   slivers of BLOCK_COLUMNS
 *                        +---+---+---+---+                      |   |   |
 *              size            keys         softmax     keys    +---+---+
 *              +----+    +---------------+  of rows  +--------+    size
 *   BLOCK_ROWS |    | x  | scores        |  ------>  | weights| x        -->  BLOCK_ROWS rows of the output
 *              +----+    +---------------+           +--------+
 *          a_along_size
 *
 * The backward pass has the same blocks, see heads.c. */
INLINE void forward(const Heads *args, int thread, int type) {
    Buffers buffers;
    set_buffers(args, args->own + thread * args->own_bytes, &buffers);
    const int64_t size = args->size, vector_words = words_of(size, type), padded_keys = round_up(args->keys, MULTIPLE),
                  row_words = words_of(padded_keys, type);
    for (int64_t number, word_stride; (number = take_next(args->next)) < args->samples * args->heads;) {
        const Head h = head_of(args, number);
        const word *vectors = vectors_of(args, args->key, h, h.length, 0, buffers.copies, &word_stride, type);
        pack_vectors(vectors, word_stride, h.length, vector_words, BLOCK_COLUMNS, buffers.b_along_size);
        vectors = vectors_of(args, args->value, h, h.length, 0, buffers.copies, &word_stride, type);
        pack_summed_vectors(vectors, word_stride, h.length, size, type, buffers.b_along_keys);
        vectors = vectors_of(args, args->query, h, h.queries, 1, buffers.copies, &word_stride, type);
        pack_vectors(vectors, word_stride, h.queries, vector_words, BLOCK_ROWS, buffers.a_along_size);
        for (int64_t row = 0; row < h.queries; row += BLOCK_ROWS) {
            const int64_t rows = min64(BLOCK_ROWS, h.queries - row), seen_keys = seen_by(args, h, row + rows - 1),
                          padded_seen = round_up(seen_keys, MULTIPLE);
            multiply_sliver(buffers.a_along_size + row * vector_words, BLOCK_ROWS, buffers.b_along_size,
                            BLOCK_COLUMNS * vector_words, vector_words, ceil_div(seen_keys, BLOCK_COLUMNS),
                            buffers.scores, padded_keys, 0, type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row(args, h, number, row + i, buffers.scores + i * padded_keys,
                            buffers.dropped_probabilities + i * padded_keys * size_of(type), padded_seen, type);
            pack_along((const word *)buffers.dropped_probabilities, row_words, rows, words_of(padded_seen, type),
                       BLOCK_ROWS, buffers.weights);
            multiply_sliver(buffers.weights, BLOCK_ROWS, buffers.b_along_keys, BLOCK_COLUMNS * words_of(h.length, type),
                            words_of(seen_keys, type), size / BLOCK_COLUMNS, buffers.sums, size, 0, type);
            store_vectors(args, buffers.sums, broadcast(args->kept), args->output, h, row, rows, 1, type);
        }
    }
}

/* Compute the gradients of a row of scores from the gradients of the probabilities, and the probabilities after
 * dropout. The function appends zeros to both results, up to `columns`. */
INLINE void softmax_row_back(const Heads *args, Head h, int64_t row, const float *grad_probabilities, char *grad_scores,
                             char *dropped, int64_t columns, int type) {
    uint32_t kept_bits[WORDS(LONGEST)];
    const int64_t seen_keys = seen_by(args, h, row), offset = h.offset + row * h.keys;
    const vec kept_scale = broadcast(args->drops ? args->kept * args->drop.scale : args->kept);
    vec row_dot = zeros();
    if (args->drops)
        draw(kept_bits, offset, seen_keys, args->drop);
    REGISTERS(k, active, 0, seen_keys, {
        vec factor = args->drops ? choose(bits_at(kept_bits, offset % 4 + k), kept_scale, zeros()) : kept_scale;
        vec after_dropout = mul(load(args->probabilities, offset + k, active, type), factor);
        store_element(dropped, k, 0xffff, after_dropout, type);
        row_dot = add_active(active, row_dot, mul(after_dropout, load_fp32(grad_probabilities + k, 0xffff)));
    });
    row_dot = broadcast(sum_of(row_dot));
    REGISTERS(k, active, 0, seen_keys, {
        vec factor = args->drops ? choose(bits_at(kept_bits, offset % 4 + k), kept_scale, zeros()) : kept_scale;
        vec grad = sub(mul(load_fp32(grad_probabilities + k, 0xffff), factor), row_dot);
        vec grad_score = choose(active, mul(load(args->probabilities, offset + k, active, type), grad), zeros());
        if (args->of_bias)
            store_element(args->of_bias, offset + k, active, grad_score, type);
        store_element(grad_scores, k, 0xffff, mul(grad_score, broadcast(args->scale)), type);
    });
    if (args->of_bias)
        REGISTERS(k, active, seen_keys, h.keys, { store_element(args->of_bias, offset + k, active, zeros(), type); });
    for (int64_t k = round_up(seen_keys, 16); k < columns; k += 16) {
        store_element(dropped, k, 0xffff, zeros(), type);
        store_element(grad_scores, k, 0xffff, zeros(), type);
    }
}

INLINE void backward(const Heads *args, int thread, int type) {
    Buffers buffers;
    set_buffers(args, args->own + thread * args->own_bytes, &buffers);
    const int64_t size = args->size, vector_words = words_of(size, type), padded_keys = round_up(args->keys, MULTIPLE),
                  row_bytes = padded_keys * size_of(type);
    for (int64_t number, word_stride; (number = take_next(args->next)) < args->samples * args->heads;) {
        const Head h = head_of(args, number);
        const word *vectors = vectors_of(args, args->value, h, h.length, 0, buffers.copies, &word_stride, type);
        pack_vectors(vectors, word_stride, h.length, vector_words, BLOCK_COLUMNS, buffers.b_along_size);
        vectors = vectors_of(args, args->key, h, h.length, 0, buffers.copies, &word_stride, type);
        pack_summed_vectors(vectors, word_stride, h.length, size, type, buffers.b_along_keys);
        vectors = vectors_of(args, args->query, h, h.queries, 1, buffers.copies, &word_stride, type);
        pack_summed_vectors(vectors, word_stride, h.queries, size, type, buffers.queries);
        vectors = vectors_of(args, args->of_output, h, h.queries, 1, buffers.copies, &word_stride, type);
        pack_summed_vectors(vectors, word_stride, h.queries, size, type, buffers.grads);
        pack_vectors(vectors, word_stride, h.queries, vector_words, BLOCK_ROWS, buffers.a_along_size);
        for (int64_t row = 0; row < h.queries; row += BLOCK_ROWS) {
            const int64_t rows = min64(BLOCK_ROWS, h.queries - row), seen_keys = seen_by(args, h, row + rows - 1);
            multiply_sliver(buffers.a_along_size + row * vector_words, BLOCK_ROWS, buffers.b_along_size,
                            BLOCK_COLUMNS * vector_words, vector_words, ceil_div(seen_keys, BLOCK_COLUMNS),
                            buffers.scores, padded_keys,
                            (const char *)args->probabilities + (h.offset + row * h.keys) * size_of(type), type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row_back(
                    args, h, row + i, buffers.scores + i * padded_keys, buffers.grad_scores + (row + i) * row_bytes,
                    buffers.dropped_probabilities + (row + i) * row_bytes, round_up(h.keys, MULTIPLE), type);
            pack_along((const word *)(buffers.grad_scores + row * row_bytes), words_of(padded_keys, type), rows,
                       words_of(round_up(seen_keys, MULTIPLE), type), BLOCK_ROWS, buffers.weights);
            multiply_sliver(buffers.weights, BLOCK_ROWS, buffers.b_along_keys, BLOCK_COLUMNS * words_of(h.length, type),
                            words_of(seen_keys, type), size / BLOCK_COLUMNS, buffers.sums, size, 0, type);
            store_vectors(args, buffers.sums, broadcast(1.0f), args->of_query, h, row, rows, 1, type);
        }
        for (int64_t first_key = 0; first_key < h.keys; first_key += BLOCK_ROWS) {
            const int64_t block_keys = min64(BLOCK_ROWS, h.keys - first_key);
            const int64_t words_before = args->causal ? first_key * args->per_key / in_word(type) : 0;
            const int64_t depth = h.queries - words_before * in_word(type);
            for (int of_values = 0; of_values < 2; of_values++) {
                const char *weight_rows = (of_values ? buffers.dropped_probabilities : buffers.grad_scores) +
                                          words_before * in_word(type) * row_bytes + first_key * size_of(type);
                const word *weights = (const word *)weight_rows;
                if (type == BF16) { /* a word has the elements of two rows; in fp32, the rows are a sliver already */
                    pack_across(weight_rows, padded_keys, block_keys, 1, depth, BLOCK_ROWS, type, buffers.weights);
                    weights = buffers.weights;
                }
                multiply_sliver(weights, type == BF16 ? BLOCK_ROWS : padded_keys,
                                (of_values ? buffers.grads : buffers.queries) + words_before * BLOCK_COLUMNS,
                                BLOCK_COLUMNS * words_of(h.queries, type), words_of(depth, type), size / BLOCK_COLUMNS,
                                buffers.sums, size, 0, type);
                store_vectors(args, buffers.sums, broadcast(1.0f), of_values ? args->of_value : args->of_key, h,
                              first_key, block_keys, 0, type);
            }
        }
    }
}

#define LOOP(name, pass, type) \
    static void name(const void *args, int64_t begin, int64_t end, int thread) { pass(args, thread, type); }
LOOP(forward_fp32, forward, FP32)
LOOP(backward_fp32, backward, FP32)
#ifdef WITH_AMX
LOOP(forward_bf16, forward, BF16)
LOOP(backward_bf16, backward, BF16)
#endif

/* Return the size in bytes of each thread's part of the buffer `own`. */
EXPORT int64_t heads_fma_bytes(const Heads *args) {
    Buffers buffers;
    return set_buffers(args, 0, &buffers);
}

/* `size` must be a multiple of 32, `keys` at most LONGEST; `own` must start on a cache line. BF16 needs a CPU with
 * AVX512-BF16. */
EXPORT void heads_fma(Heads *args, int back, int type, int threads) {
    int64_t next = 0;
    args->next = &next;
    Loop loop = back ? backward_fp32 : forward_fp32;
#ifdef WITH_AMX
    if (type == BF16)
        loop = back ? backward_bf16 : forward_bf16;
#endif
    in_shares(threads, loop, args, threads);
}
