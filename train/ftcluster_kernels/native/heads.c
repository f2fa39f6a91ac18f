#include "vectors.h"

#ifdef WITH_AMX

#include "heads.h"
#include "tiles.h"

/* Attention of bf16 vectors on AMX tiles. */

#define ROWS (16 * HIGH) /* queries at once */

typedef struct {
    bf16 *at;
    int64_t stride; /* numbers from one row to the next */
} Rows;

INLINE int64_t wide(int64_t keys) { return up_to(keys, 96); }

INLINE Rows rows_of(const Heads *a, Vectors x, Head h) {
    int64_t first_row = a->starts ? a->starts[h.sample] * x.row_stride : h.sample * x.sample_stride;
    return (Rows){(bf16 *)x.at + first_row + h.head * x.head_stride, x.row_stride};
}

/* Copy the rows of heads that share their keys to `copies`, or back; a token's rows are beside each other there. */
static void copy_queries(const Heads *a, Vectors x, Head h, bf16 *copies, int back) {
    for (int64_t i = 0; i < h.queries; i++) {
        int64_t token = a->starts[h.sample] + i / a->per_key, query_head = h.head * a->per_key + i % a->per_key;
        bf16 *original = (bf16 *)x.at + token * x.row_stride + query_head * x.head_stride, *copy = copies + i * a->size;
        for (int64_t k = 0; k < a->size; k += 32)
            _mm512_storeu_si512((back ? original : copy) + k, _mm512_loadu_si512((back ? copy : original) + k));
    }
}

/* The rows of queries where they are; if heads share keys, in `copies`. */
INLINE Rows place_of_queries(const Heads *a, Vectors x, Head h, bf16 *copies) {
    return shares_keys(a) ? (Rows){copies, a->size} : rows_of(a, x, h);
}

INLINE Rows queries_of(const Heads *a, Vectors x, Head h, bf16 *copies) {
    if (shares_keys(a))
        copy_queries(a, x, h, copies, 0);
    return place_of_queries(a, x, h, copies);
}

/* Right tiles for sums of `rows` vectors. */
INLINE void pack_summed(Rows from, int64_t rows, int64_t size, bf16 *to) {
    int64_t chunks = parts(rows, 32);
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        pack_pairs(from.at + chunk * 32 * from.stride, from.stride, least(32, rows - chunk * 32), size / 16, chunks, 0, to + chunk * TILE);
}

AMX INLINE void multiply_to(const bf16 *left, int64_t apart, const bf16 *right, const bf16 *beside, int64_t chunks, float *sums,
                            int64_t columns) {
    zero_sums();
    for (int64_t i = 0; i < chunks * TILE; i += TILE)
        add_products(left + i, apart, right + i, beside + i);
    store_sums(sums, columns);
}

/* Products of ROWS vectors with each of 32 `pairs` others, to rows of `columns`. */
AMX INLINE void multiply_each(const bf16 *left, const bf16 *turned, int64_t size, int64_t pairs, float *scores, int64_t columns) {
    const int64_t tile = size / 32 * TILE;
    for (int64_t i = 0; i < pairs; i++)
        multiply_to(left, tile, turned + 2 * i * tile, turned + (2 * i + 1) * tile, size / 32, scores + i * 32, columns);
}

/* `rows` sums of `size` numbers, times a factor, to rows from `first` on. */
AMX INLINE void multiply_out(const bf16 *left, int64_t apart, int64_t chunks, const bf16 *right, int64_t of_right, int64_t size, int64_t rows,
                             float *sums, vec factor, Rows to, int64_t first) {
    for (int64_t j = 0; j < size / 16; j += 2) {
        multiply_to(left, apart, right + j * of_right * TILE, right + (j + 1) * of_right * TILE, chunks, sums, 32);
        for (int64_t i = 0; i < rows; i++) {
            bf16 *output = to.at + (first + i) * to.stride + j * 16;
            store_bf16(output, 0xffff, mul(_mm512_load_ps(sums + i * 32), factor));
            store_bf16(output + 16, 0xffff, mul(_mm512_load_ps(sums + i * 32 + 16), factor));
        }
    }
}

/* Numbers from `begin` on of row i of left tiles. */
INLINE bf16 *in_tiles(bf16 *tiles, int64_t chunks, int64_t i, int64_t begin) {
    return tiles + (i / 16 * chunks + begin / 32) * TILE + i % 16 * 32 + begin % 32;
}

/* The buffers of a thread. */
typedef struct {
    float *scores;                 /* ROWS x keys: attention scores, backward the gradients of probabilities */
    float *sums;                   /* ROWS x 32: sums of products on their way to the output */
    bf16 *right_along_size;        /* right tiles for sums over `size`: of keys, backward of values */
    bf16 *right_along_keys;        /* right tiles for sums over keys: of values, backward of keys */
    bf16 *left_along_size;         /* left tiles of a block: of its queries, backward of gradients of its outputs */
    bf16 *weights;                 /* left tiles of what rows are summed by: probabilities or gradients of scores */
    bf16 *queries, *grads;         /* backward: right tiles for sums over queries, of queries and gradients of outputs */
    bf16 *grad_scores;             /* backward: queries x keys */
    bf16 *dropped_probabilities;   /* backward: queries x keys, after dropout */
    bf16 *copies[3];               /* of queries that share keys, of outputs, and of gradients */
} Own;

INLINE Own own_of(const Heads *a, int thread) {
    char *at = a->own + thread * a->own_bytes;
    int64_t padded_keys = wide(a->keys), padded_queries = up_to(a->queries, 96);
    Own buffers;
#define TAKE(name, type, count) buffers.name = (type *)at, at += (count) * (int64_t)sizeof(type)
    TAKE(scores, float, ROWS * padded_keys);
    TAKE(sums, float, ROWS * 32);
    TAKE(right_along_size, bf16, padded_keys * a->size);
    TAKE(right_along_keys, bf16, padded_keys * a->size);
    TAKE(left_along_size, bf16, ROWS * a->size);
    TAKE(weights, bf16, ROWS * (padded_keys > padded_queries ? padded_keys : padded_queries));
    TAKE(queries, bf16, padded_queries * a->size);
    TAKE(grads, bf16, padded_queries * a->size);
    TAKE(grad_scores, bf16, padded_queries * padded_keys);
    TAKE(dropped_probabilities, bf16, padded_queries * padded_keys);
    for (int i = 0; i < 3; i++)
        TAKE(copies[i], bf16, shares_keys(a) ? padded_queries * a->size : 0);
    return buffers;
}

/* A block of the forward pass. Rows of queries, keys and values have `size` numbers; # are tiles of 16 x 32 numbers.
 *
 *                        keys: right_along_size                     values: right_along_keys
 *                        +----+----+----+----+                      size
 *                  size  | #    #    #    #  |                      +----+----+
 *                        +----+----+----+----+                keys  | #    #  |
 *                              |                                    | #    #  |
 *              size            v   keys                             +----+----+
 *              +----+    +-------------------+   softmax  keys           |
 *   ROWS       | #  |    |                   |   of each  +---------+    v
 *   queries    | #  | x  | scores (fp32)     |  -------->  | #  #   |    +---------+
 *              | #  |    |                   |    row      | #  #   | x  | sums    | --> 48 rows of the output
 *              +----+    +-------------------+             | #  #   |    +---------+
 *         left_along_size                                  +--------+
 *                                                          weights: probabilities in bf16
 *
 * Causal blocks compute `seen_chunks` of 32 keys and leave the rest. */
AMX static void heads_forward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *a = pointer;
    const Own buffers = own_of(a, thread);
    const int64_t size = a->size;
    const vec dropout_scale = all(a->drop.scale);
    float row_scores[LONGEST + 16]; /* scores, then their exponentials */
    uint32_t kept_bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const int64_t key_chunks = parts(h.length, 32), padded_keys = wide(h.keys);
        const Rows key_rows = rows_of(a, a->key, h), query_rows = queries_of(a, a->query, h, buffers.copies[0]);
        const Rows output = place_of_queries(a, a->output, h, buffers.copies[1]);
        pack_rows(key_rows.at, key_rows.stride, h.length, 2 * key_chunks, size / 32, size / 32, 1, buffers.right_along_size);
        pack_summed(rows_of(a, a->value, h), h.length, size, buffers.right_along_keys);
        for (int64_t row = 0; row < h.queries; row += ROWS) {
            int64_t rows = least(ROWS, h.queries - row), seen_chunks = parts(seen_by(a, h, row + rows - 1), 32);
            pack_rows(query_rows.at + row * query_rows.stride, query_rows.stride, rows, HIGH, size / 32, size / 32, 0, buffers.left_along_size);
            multiply_each(buffers.left_along_size, buffers.right_along_size, size, seen_chunks, buffers.scores, padded_keys);
            for (int64_t i = 0; i < rows; i++) {
                const float *attention_scores = buffers.scores + i * padded_keys;
                int64_t place = h.place + (row + i) * h.keys;
                int64_t seen = a->hidden && a->hidden[number * a->queries + row + i] ? 0 : seen_by(a, h, row + i);
                const bf16 *bias = a->bias ? (const bf16 *)a->bias + h.sample * a->bias_sample + h.head * a->bias_head + (row + i) * a->bias_row : 0;
                vec row_max = all(-__builtin_inff()), row_sum = zeros();
                REGISTERS(k, some, 0, seen, {
                    vec score = mul(load_fp32(attention_scores + k, some), all(a->scale));
                    if (bias)
                        score = add(score, load_bf16(bias + k, some));
                    store_fp32(row_scores + k, 0xffff, score);
                    row_max = larger_some(some, row_max, score);
                });
                row_max = all(largest_in(row_max));
                REGISTERS(k, some, 0, seen, {
                    vec power = exponential(sub(load_fp32(row_scores + k, some), row_max), BF16);
                    store_fp32(row_scores + k, 0xffff, power);
                    row_sum = add_some(some, row_sum, power);
                });
                vec inverse_sum = all(1.0f / sum_of(row_sum));
                if (a->drops)
                    draw(kept_bits, place, seen, a->drop);
                for (int64_t k = 0; k < seen_chunks * 32; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k), in_row = k >= h.keys ? 0 : first(h.keys - k);
                    vec probability = choose(some, mul(load_fp32(row_scores + k, 0xffff), inverse_sum), zeros());
                    __m256i weight = rounded(probability);
                    _mm256_mask_storeu_epi16((bf16 *)a->probabilities + place + k, in_row, weight);
                    if (a->drops && some) {
                        vec by = choose(bits_at(kept_bits, place % 4 + k), dropout_scale, zeros());
                        weight = rounded(mul(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(weight), 16)), choose(some, by, zeros())));
                    }
                    _mm256_storeu_si256((void *)in_tiles(buffers.weights, seen_chunks, i, k), weight);
                }
            }
            multiply_out(buffers.weights, seen_chunks * TILE, seen_chunks, buffers.right_along_keys, key_chunks, size, rows, buffers.sums,
                         all(a->kept), output, row);
        }
        if (shares_keys(a))
            copy_queries(a, a->output, h, buffers.copies[1], 1);
    }
    _tile_release();
}

/* The backward pass has the same blocks, with gradients of outputs for queries and values for keys, and its weights are
 * the gradients of scores, which make the gradients of queries. Both matrices of weights stay, and then a block of ROWS
 * keys at a time is summed over the queries, from the first that sees one of these keys:
 *
 *                          keys                                        size
 *                          +-------+------+-----+                      +----+----+
 *   grad_scores, or        |  .    | #  # |     |           queries,   | #    #  |
 *   dropped_probabilities  |  .    | #  # |     |  turned   or grads   | #    #  |
 *                 queries  |  .    | #  # |     |     x                +----+----+   --> ROWS rows of gradients
 *                          +-------+------+-----+                                        of keys, or of values
 *                                  first_key
 */
AMX static void heads_backward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *a = pointer;
    const Own buffers = own_of(a, thread);
    const int64_t size = a->size;
    const vec dropout_scale = all(a->drop.scale), kept = all(a->kept);
    uint32_t kept_bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const int64_t key_chunks = parts(h.length, 32), padded_keys = wide(h.keys), query_chunks = parts(h.queries, 32);
        const Rows value_rows = rows_of(a, a->value, h), of_output = queries_of(a, a->of_output, h, buffers.copies[1]);
        const Rows of_query = place_of_queries(a, a->of_query, h, buffers.copies[2]);
        pack_rows(value_rows.at, value_rows.stride, h.length, 2 * key_chunks, size / 32, size / 32, 1, buffers.right_along_size);
        pack_summed(rows_of(a, a->key, h), h.length, size, buffers.right_along_keys);
        pack_summed(queries_of(a, a->query, h, buffers.copies[0]), h.queries, size, buffers.queries);
        pack_summed(of_output, h.queries, size, buffers.grads);
        for (int64_t row = 0; row < h.queries; row += ROWS) {
            int64_t rows = least(ROWS, h.queries - row), seen_chunks = parts(seen_by(a, h, row + rows - 1), 32);
            pack_rows(of_output.at + row * of_output.stride, of_output.stride, rows, HIGH, size / 32, size / 32, 0, buffers.left_along_size);
            multiply_each(buffers.left_along_size, buffers.right_along_size, size, seen_chunks, buffers.scores, padded_keys);
            for (int64_t i = 0; i < rows; i++) {
                float *of_probabilities = buffers.scores + i * padded_keys;
                int64_t seen = seen_by(a, h, row + i), place = h.place + (row + i) * h.keys;
                bf16 *of_scores = buffers.grad_scores + (row + i) * padded_keys;
                bf16 *dropped = buffers.dropped_probabilities + (row + i) * padded_keys;
                vec row_dot = zeros(); /* probabilities after dropout times their gradients */
                if (a->drops)
                    draw(kept_bits, place, seen, a->drop);
                for (int64_t k = 0; k < padded_keys; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k);
                    vec probability = some ? load_bf16((bf16 *)a->probabilities + place + k, some) : zeros(), after_dropout = probability;
                    if (a->drops && some)
                        after_dropout = mul(probability, choose(bits_at(kept_bits, place % 4 + k), dropout_scale, zeros()));
                    store_bf16(dropped + k, 0xffff, mul(after_dropout, kept));
                    if (!some)
                        continue;
                    vec grad = mul(load_fp32(of_probabilities + k, some), kept);
                    row_dot = mul_add(after_dropout, grad, row_dot);
                }
                row_dot = all(sum_of(row_dot));
                for (int64_t k = 0; k < padded_keys; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k);
                    vec of_score = zeros();
                    if (some) {
                        vec probability = load_bf16((bf16 *)a->probabilities + place + k, some);
                        vec grad = mul(load_fp32(of_probabilities + k, some), kept);
                        if (a->drops)
                            grad = mul(grad, choose(bits_at(kept_bits, place % 4 + k), dropout_scale, zeros()));
                        of_score = mul(mul(probability, sub(grad, row_dot)), all(a->scale));
                    }
                    __m256i weight = rounded(of_score);
                    _mm256_storeu_si256((void *)(of_scores + k), weight);
                    if (k < seen_chunks * 32)
                        _mm256_storeu_si256((void *)in_tiles(buffers.weights, seen_chunks, i, k), weight);
                }
            }
            multiply_out(buffers.weights, seen_chunks * TILE, seen_chunks, buffers.right_along_keys, key_chunks, size, rows, buffers.sums,
                         all(1.0f), of_query, row);
        }
        if (shares_keys(a))
            copy_queries(a, a->of_query, h, buffers.copies[2], 1);
        for (int64_t first_key = 0; first_key < h.keys; first_key += ROWS) {
            int64_t block_keys = least(ROWS, h.keys - first_key);
            int64_t first_chunk = a->causal ? first_key * a->per_key / 32 : 0, summed_chunks = query_chunks - first_chunk;
            for (int of_values = 0; of_values < 2; of_values++) {
                const bf16 *matrix = of_values ? buffers.dropped_probabilities : buffers.grad_scores;
                for (int64_t chunk = first_chunk; chunk < query_chunks; chunk++)
                    pack_pairs(matrix + chunk * 32 * padded_keys + first_key, padded_keys, least(32, h.queries - chunk * 32), HIGH, summed_chunks, 1,
                               buffers.weights + (chunk - first_chunk) * TILE);
                Rows gradients = rows_of(a, of_values ? a->of_value : a->of_key, h);
                const bf16 *right = (of_values ? buffers.grads : buffers.queries) + first_chunk * TILE;
                multiply_out(buffers.weights, summed_chunks * TILE, summed_chunks, right, query_chunks, size, block_keys, buffers.sums,
                             all(1.0f), gradients, first_key);
            }
        }
    }
    _tile_release();
}

/* Bytes of `own` for a thread. */
EXPORT int64_t heads_bytes(const Heads *a) {
    int64_t padded_keys = wide(a->keys), padded_queries = up_to(a->queries, 96), more = padded_keys > padded_queries ? padded_keys : padded_queries;
    int64_t sums = ROWS * padded_keys + ROWS * 32, packed = 2 * (padded_keys + padded_queries) * a->size + ROWS * (a->size + more);
    int64_t copies = shares_keys(a) ? 3 * padded_queries * a->size : 0;
    return up_to(4 * sums + 2 * (packed + 2 * padded_queries * padded_keys + copies), 4096);
}

/* `size` is a multiple of 32, and there are at most LONGEST keys; `own` starts on a cache line. */
EXPORT void heads(Heads *a, int back, int threads) {
    int64_t next = 0;
    a->next = &next;
    in_shares(threads, back ? heads_backward : heads_forward, a, threads);
}

#endif
