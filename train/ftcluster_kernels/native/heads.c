#include "vectors.h"

#ifdef WITH_AMX

#include "heads.h"
#include "tiles.h"

/* Attention for bf16 vectors on AMX tiles. */

#define BLOCK_ROWS (16 * BLOCK_TILES) /* number of queries, or of keys, in a block */

typedef struct {
    bf16 *at;
    int64_t stride; /* elements between the starts of two rows */
} Rows;

INLINE int64_t padded(int64_t keys) { return round_up(keys, 96); }

INLINE Rows rows_of(const Heads *args, Vectors x, Head h) {
    int64_t first_row = args->starts ? args->starts[h.sample] * x.row_stride : h.sample * x.sample_stride;
    return (Rows){(bf16 *)x.at + first_row + h.head * x.head_stride, x.row_stride};
}

/* Copy the queries of heads that share keys to `copies`, or back; in `copies` the rows of a token are adjacent. */
static void copy_queries(const Heads *args, Vectors x, Head h, bf16 *copies, int copies_back) {
    for (int64_t i = 0; i < h.queries; i++) {
        int64_t token = args->starts[h.sample] + i / args->per_key,
                query_head = h.head * args->per_key + i % args->per_key;
        bf16 *original = (bf16 *)x.at + token * x.row_stride + query_head * x.head_stride,
             *copy = copies + i * args->size;
        for (int64_t k = 0; k < args->size; k += 32)
            _mm512_storeu_si512((copies_back ? original : copy) + k,
                                _mm512_loadu_si512((copies_back ? copy : original) + k));
    }
}

/* Return the rows of a head's queries; they are in `copies` if heads share keys. */
INLINE Rows place_of_queries(const Heads *args, Vectors x, Head h, bf16 *copies) {
    return shares_keys(args) ? (Rows){copies, args->size} : rows_of(args, x, h);
}

INLINE Rows queries_of(const Heads *args, Vectors x, Head h, bf16 *copies) {
    if (shares_keys(args))
        copy_queries(args, x, h, copies, 0);
    return place_of_queries(args, x, h, copies);
}

/* Pack vectors as tiles of B, to compute weighted sums of these vectors. */
INLINE void pack_summed_vectors(Rows vectors, int64_t rows, int64_t size, bf16 *b_tiles) {
    int64_t depth_tiles = ceil_div(rows, 32);
    for (int64_t depth_tile = 0; depth_tile < depth_tiles; depth_tile++)
        pack_pairs(vectors.at + depth_tile * 32 * vectors.stride, vectors.stride, min64(32, rows - depth_tile * 32),
                   size / 16, depth_tiles, 0, b_tiles + depth_tile * TILE);
}

/* Multiply three tiles of A by two tiles of B, along a depth of `depth_tiles` tiles. */
AMX INLINE void multiply_pair(const bf16 *a_tiles, int64_t a_stride, const bf16 *b_left, const bf16 *b_right,
                              int64_t depth_tiles, float *sums, int64_t row_stride) {
    zero_sums();
    for (int64_t i = 0; i < depth_tiles * TILE; i += TILE)
        multiply_tiles(a_tiles + i, a_stride, b_left + i, b_right + i);
    store_sums(sums, row_stride);
}

/* Multiply BLOCK_ROWS vectors by 32 * `tile_pairs` vectors; rows of the scores are `row_stride` elements apart. */
AMX INLINE void multiply_vectors(const bf16 *a_tiles, const bf16 *b_tiles, int64_t size, int64_t tile_pairs,
                                 float *scores, int64_t row_stride) {
    const int64_t vector_stride = size / 32 * TILE;
    for (int64_t i = 0; i < tile_pairs; i++)
        multiply_pair(a_tiles, vector_stride, b_tiles + 2 * i * vector_stride, b_tiles + (2 * i + 1) * vector_stride,
                      size / 32, scores + i * 32, row_stride);
}

/* Compute `rows` weighted sums of vectors, multiply them by a factor, and store them beginning at `first_row`. */
AMX INLINE void multiply_to_rows(const bf16 *a_tiles, int64_t a_stride, int64_t depth_tiles, const bf16 *b_tiles,
                                 int64_t b_stride, int64_t size, int64_t rows, float *sums, vec factor, Rows output,
                                 int64_t first_row) {
    for (int64_t j = 0; j < size / 16; j += 2) {
        multiply_pair(a_tiles, a_stride, b_tiles + j * b_stride * TILE, b_tiles + (j + 1) * b_stride * TILE,
                      depth_tiles, sums, 32);
        for (int64_t i = 0; i < rows; i++) {
            bf16 *output_row = output.at + (first_row + i) * output.stride + j * 16;
            store_bf16(output_row, 0xffff, mul(_mm512_load_ps(sums + i * 32), factor));
            store_bf16(output_row + 16, 0xffff, mul(_mm512_load_ps(sums + i * 32 + 16), factor));
        }
    }
}

/* Return the address of an element in tiles of A. */
INLINE bf16 *element_in_tiles(bf16 *tiles, int64_t depth_tiles, int64_t row, int64_t column) {
    return tiles + (row / 16 * depth_tiles + column / 32) * TILE + row % 16 * 32 + column % 32;
}

/* The buffers of a thread. A and B are the two factors of a matrix multiplication, see tiles.h. */
typedef struct {
    float *scores;               /* BLOCK_ROWS x keys: attention scores; backward: gradients of probabilities */
    float *sums;                 /* BLOCK_ROWS x 32: elements before they are rounded to the output */
    bf16 *b_along_size;          /* B, depth is `size`: keys; backward: values */
    bf16 *b_along_keys;          /* B, depth is keys: values; backward: keys */
    bf16 *a_along_size;          /* A, depth is `size`: queries of a block; backward: gradients of its outputs */
    bf16 *weights;               /* A, depth is keys or queries: probabilities; backward: gradients of scores */
    bf16 *queries, *grads;       /* backward: B, depth is queries: queries, and gradients of outputs */
    bf16 *grad_scores;           /* backward: queries x keys */
    bf16 *dropped_probabilities; /* backward: queries x keys, after dropout */
    bf16 *copies[3];             /* if heads share keys: queries, outputs or their gradients, gradients of queries */
} Buffers;

INLINE Buffers buffers_of(const Heads *args, int thread) {
    char *next_buffer = args->own + thread * args->own_bytes;
    int64_t padded_keys = padded(args->keys), padded_queries = round_up(args->queries, 96);
    Buffers buffers;
#define TAKE(name, type, count) buffers.name = (type *)next_buffer, next_buffer += (count) * (int64_t)sizeof(type)
    TAKE(scores, float, BLOCK_ROWS * padded_keys);
    TAKE(sums, float, BLOCK_ROWS * 32);
    TAKE(b_along_size, bf16, padded_keys * args->size);
    TAKE(b_along_keys, bf16, padded_keys * args->size);
    TAKE(a_along_size, bf16, BLOCK_ROWS * args->size);
    TAKE(weights, bf16, BLOCK_ROWS * (padded_keys > padded_queries ? padded_keys : padded_queries));
    TAKE(queries, bf16, padded_queries * args->size);
    TAKE(grads, bf16, padded_queries * args->size);
    TAKE(grad_scores, bf16, padded_queries * padded_keys);
    TAKE(dropped_probabilities, bf16, padded_queries * padded_keys);
    for (int i = 0; i < 3; i++)
        TAKE(copies[i], bf16, shares_keys(args) ? padded_queries * args->size : 0);
    return buffers;
}

/* A block of the forward pass has BLOCK_ROWS = 48 queries. Queries, keys and values have `size` elements. Each # is a
 * tile of 16 x 32 elements, or in B of 32 x 16 elements:
 *
 *                        keys: b_along_size                         values: b_along_keys
 *                        +----+----+----+----+                      size
 *                  size  | #    #    #    #  |                      +----+----+
 *                        +----+----+----+----+                keys  | #    #  |
 *                              |                                    | #    #  |
 *              size            v   keys                             +----+----+
 *              +----+    +-------------------+   softmax   keys          |
 *   48 queries | #  |    |                   |   of each   +--------+    v
 *              | #  | x  | scores (fp32)     |  -------->  | #  #   |    +---------+
 *              | #  |    |                   |    row      | #  #   | x  | sums    | --> 48 rows of the output
 *              +----+    +-------------------+             | #  #   |    +---------+
 *         a_along_size                                     +--------+
 *                                                          weights: probabilities in bf16
 *
 * A causal block computes only the first `seen_tiles` x 32 keys. */
AMX static void heads_forward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *args = pointer;
    const Buffers buffers = buffers_of(args, thread);
    const int64_t size = args->size;
    const vec dropout_scale = broadcast(args->drop.scale);
    float row_scores[LONGEST + 16]; /* first the scores, then their exponentials */
    uint32_t kept_bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = take_next(args->next)) < args->samples * args->heads;) {
        const Head h = head_of(args, number);
        const int64_t key_tiles = ceil_div(h.length, 32), padded_keys = padded(h.keys);
        const Rows key_rows = rows_of(args, args->key, h),
                   query_rows = queries_of(args, args->query, h, buffers.copies[0]);
        const Rows output = place_of_queries(args, args->output, h, buffers.copies[1]);
        pack_rows(key_rows.at, key_rows.stride, h.length, 2 * key_tiles, size / 32, size / 32, 1, buffers.b_along_size);
        pack_summed_vectors(rows_of(args, args->value, h), h.length, size, buffers.b_along_keys);
        for (int64_t row = 0; row < h.queries; row += BLOCK_ROWS) {
            int64_t rows = min64(BLOCK_ROWS, h.queries - row),
                    seen_tiles = ceil_div(seen_by(args, h, row + rows - 1), 32);
            pack_rows(query_rows.at + row * query_rows.stride, query_rows.stride, rows, BLOCK_TILES, size / 32,
                      size / 32, 0, buffers.a_along_size);
            multiply_vectors(buffers.a_along_size, buffers.b_along_size, size, seen_tiles, buffers.scores, padded_keys);
            for (int64_t i = 0; i < rows; i++) {
                const float *attention_scores = buffers.scores + i * padded_keys;
                int64_t offset = h.offset + (row + i) * h.keys;
                int64_t seen_keys =
                    args->hidden && args->hidden[number * args->queries + row + i] ? 0 : seen_by(args, h, row + i);
                const bf16 *bias = args->bias ? (const bf16 *)args->bias + h.sample * args->bias_sample +
                                                    h.head * args->bias_head + (row + i) * args->bias_row
                                              : 0;
                vec row_max = broadcast(-__builtin_inff()), row_sum = zeros();
                REGISTERS(k, active, 0, seen_keys, {
                    vec score = mul(load_fp32(attention_scores + k, active), broadcast(args->scale));
                    if (bias)
                        score = add(score, load_bf16(bias + k, active));
                    store_fp32(row_scores + k, 0xffff, score);
                    row_max = larger_active(active, row_max, score);
                });
                row_max = broadcast(largest_in(row_max));
                REGISTERS(k, active, 0, seen_keys, {
                    vec score_exp = exponential(sub(load_fp32(row_scores + k, active), row_max), BF16);
                    store_fp32(row_scores + k, 0xffff, score_exp);
                    row_sum = add_active(active, row_sum, score_exp);
                });
                vec inverse_sum = broadcast(1.0f / sum_of(row_sum));
                if (args->drops)
                    draw(kept_bits, offset, seen_keys, args->drop);
                for (int64_t k = 0; k < seen_tiles * 32; k += 16) {
                    lanes active = k >= seen_keys ? 0 : first_lanes(seen_keys - k),
                          stored = k >= h.keys ? 0 : first_lanes(h.keys - k);
                    vec probability = choose(active, mul(load_fp32(row_scores + k, 0xffff), inverse_sum), zeros());
                    __m256i weight_bf16 = rounded(probability);
                    if (args->probabilities)
                        _mm256_mask_storeu_epi16((bf16 *)args->probabilities + offset + k, stored, weight_bf16);
                    if (args->drops && active) {
                        vec factor = choose(bits_at(kept_bits, offset % 4 + k), dropout_scale, zeros());
                        weight_bf16 =
                            rounded(mul(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(weight_bf16), 16)),
                                        choose(active, factor, zeros())));
                    }
                    _mm256_storeu_si256((void *)element_in_tiles(buffers.weights, seen_tiles, i, k), weight_bf16);
                }
            }
            multiply_to_rows(buffers.weights, seen_tiles * TILE, seen_tiles, buffers.b_along_keys, key_tiles, size,
                             rows, buffers.sums, broadcast(args->kept), output, row);
        }
        if (shares_keys(args))
            copy_queries(args, args->output, h, buffers.copies[1], 1);
    }
    _tile_release();
}

/* The backward pass has the same blocks, with gradients of outputs instead of queries, and values instead of keys. The
 * weights are gradients of scores, and the output of a block is gradients of queries.
 *
 * The pass keeps two matrices of all queries and keys: gradients of scores, and probabilities after dropout. Then each
 * block of BLOCK_ROWS keys sums over the queries, beginning at the first query that sees a key of the block; the pass
 * skips the tiles marked +:
 *
 *                          keys                                          size
 *                          +-------+------+-----+                        +----+----+
 *   grad_scores, or        |  .    | +  + |     |             queries,   | +    +  |
 *   dropped_probabilities  |  .    | #  # |     | transposed  or grads   | #    #  |
 *                 queries  |  .    | #  # |     |     x                  | #    #  |   --> BLOCK_ROWS rows of gradients
 *                          +-------+------+-----+                        +----+----+       of keys, or of values
 *                                  first_key
 */
AMX static void heads_backward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *args = pointer;
    const Buffers buffers = buffers_of(args, thread);
    const int64_t size = args->size;
    const vec dropout_scale = broadcast(args->drop.scale), kept = broadcast(args->kept);
    uint32_t kept_bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = take_next(args->next)) < args->samples * args->heads;) {
        const Head h = head_of(args, number);
        const int64_t key_tiles = ceil_div(h.length, 32), padded_keys = padded(h.keys),
                      query_tiles = ceil_div(h.queries, 32);
        const Rows value_rows = rows_of(args, args->value, h),
                   grad_output = queries_of(args, args->of_output, h, buffers.copies[1]);
        const Rows grad_query = place_of_queries(args, args->of_query, h, buffers.copies[2]);
        pack_rows(value_rows.at, value_rows.stride, h.length, 2 * key_tiles, size / 32, size / 32, 1,
                  buffers.b_along_size);
        pack_summed_vectors(rows_of(args, args->key, h), h.length, size, buffers.b_along_keys);
        pack_summed_vectors(queries_of(args, args->query, h, buffers.copies[0]), h.queries, size, buffers.queries);
        pack_summed_vectors(grad_output, h.queries, size, buffers.grads);
        for (int64_t row = 0; row < h.queries; row += BLOCK_ROWS) {
            int64_t rows = min64(BLOCK_ROWS, h.queries - row),
                    seen_tiles = ceil_div(seen_by(args, h, row + rows - 1), 32);
            pack_rows(grad_output.at + row * grad_output.stride, grad_output.stride, rows, BLOCK_TILES, size / 32,
                      size / 32, 0, buffers.a_along_size);
            multiply_vectors(buffers.a_along_size, buffers.b_along_size, size, seen_tiles, buffers.scores, padded_keys);
            for (int64_t i = 0; i < rows; i++) {
                float *grad_probabilities = buffers.scores + i * padded_keys;
                int64_t seen_keys = seen_by(args, h, row + i), offset = h.offset + (row + i) * h.keys;
                bf16 *grad_scores_row = buffers.grad_scores + (row + i) * padded_keys;
                bf16 *dropped = buffers.dropped_probabilities + (row + i) * padded_keys;
                vec row_dot = zeros(); /* the dot product of probabilities after dropout and their gradients */
                if (args->drops)
                    draw(kept_bits, offset, seen_keys, args->drop);
                for (int64_t k = 0; k < padded_keys; k += 16) {
                    lanes active = k >= seen_keys ? 0 : first_lanes(seen_keys - k);
                    vec probability = active ? load_bf16((bf16 *)args->probabilities + offset + k, active) : zeros(),
                        after_dropout = probability;
                    if (args->drops && active)
                        after_dropout =
                            mul(probability, choose(bits_at(kept_bits, offset % 4 + k), dropout_scale, zeros()));
                    store_bf16(dropped + k, 0xffff, mul(after_dropout, kept));
                    if (!active)
                        continue;
                    vec grad_probability = mul(load_fp32(grad_probabilities + k, active), kept);
                    row_dot = mul_add(after_dropout, grad_probability, row_dot);
                }
                row_dot = broadcast(sum_of(row_dot));
                for (int64_t k = 0; k < padded_keys; k += 16) {
                    lanes active = k >= seen_keys ? 0 : first_lanes(seen_keys - k);
                    vec grad_score = zeros();
                    if (active) {
                        vec probability = load_bf16((bf16 *)args->probabilities + offset + k, active);
                        vec grad_probability = mul(load_fp32(grad_probabilities + k, active), kept);
                        if (args->drops)
                            grad_probability = mul(grad_probability,
                                                   choose(bits_at(kept_bits, offset % 4 + k), dropout_scale, zeros()));
                        grad_score = mul(probability, sub(grad_probability, row_dot));
                    }
                    if (args->of_bias && k < h.keys)
                        store_bf16((bf16 *)args->of_bias + offset + k, first_lanes(h.keys - k),
                                   choose(active, grad_score, zeros()));
                    grad_score = mul(grad_score, broadcast(args->scale));
                    __m256i grad_score_bf16 = rounded(grad_score);
                    _mm256_storeu_si256((void *)(grad_scores_row + k), grad_score_bf16);
                    if (k < seen_tiles * 32)
                        _mm256_storeu_si256((void *)element_in_tiles(buffers.weights, seen_tiles, i, k),
                                            grad_score_bf16);
                }
            }
            multiply_to_rows(buffers.weights, seen_tiles * TILE, seen_tiles, buffers.b_along_keys, key_tiles, size,
                             rows, buffers.sums, broadcast(1.0f), grad_query, row);
        }
        if (shares_keys(args))
            copy_queries(args, args->of_query, h, buffers.copies[2], 1);
        for (int64_t first_key = 0; first_key < h.keys; first_key += BLOCK_ROWS) {
            int64_t block_keys = min64(BLOCK_ROWS, h.keys - first_key);
            int64_t first_tile = args->causal ? first_key * args->per_key / 32 : 0,
                    summed_tiles = query_tiles - first_tile;
            for (int of_values = 0; of_values < 2; of_values++) {
                const bf16 *weight_rows = of_values ? buffers.dropped_probabilities : buffers.grad_scores;
                for (int64_t query_tile = first_tile; query_tile < query_tiles; query_tile++)
                    pack_pairs(weight_rows + query_tile * 32 * padded_keys + first_key, padded_keys,
                               min64(32, h.queries - query_tile * 32), BLOCK_TILES, summed_tiles, 1,
                               buffers.weights + (query_tile - first_tile) * TILE);
                Rows grad_rows = rows_of(args, of_values ? args->of_value : args->of_key, h);
                const bf16 *b_tiles = (of_values ? buffers.grads : buffers.queries) + first_tile * TILE;
                multiply_to_rows(buffers.weights, summed_tiles * TILE, summed_tiles, b_tiles, query_tiles, size,
                                 block_keys, buffers.sums, broadcast(1.0f), grad_rows, first_key);
            }
        }
    }
    _tile_release();
}

/* Return the size in bytes of each thread's part of the buffer `own`. */
EXPORT int64_t heads_bytes(const Heads *args) {
    int64_t padded_keys = padded(args->keys), padded_queries = round_up(args->queries, 96),
            more = padded_keys > padded_queries ? padded_keys : padded_queries;
    int64_t sums = BLOCK_ROWS * padded_keys + BLOCK_ROWS * 32,
            packed = 2 * (padded_keys + padded_queries) * args->size + BLOCK_ROWS * (args->size + more);
    int64_t copies = shares_keys(args) ? 3 * padded_queries * args->size : 0;
    return round_up(4 * sums + 2 * (packed + 2 * padded_queries * padded_keys + copies), 4096);
}

/* `size` must be a multiple of 32, `keys` at most LONGEST; `own` must start on a cache line. */
EXPORT void heads(Heads *args, int back, int threads) {
    int64_t next = 0;
    args->next = &next;
    in_shares(threads, back ? heads_backward : heads_forward, args, threads);
}

#endif
