#include "vectors.h"

#ifdef WITH_AMX

#include "heads.h"
#include "tiles.h"

/* Attention of bf16 vectors on AMX tiles. */

#define ROWS (16 * HIGH) /* queries at once */

typedef struct {
    bf16 *at;
    int64_t row; /* numbers from one to the next */
} Rows;

INLINE int64_t wide(int64_t keys) { return up_to(keys, 96); }

INLINE Rows rows_of(const Heads *a, Vectors x, Head h) {
    int64_t sample = a->starts ? a->starts[h.sample] * x.row : h.sample * x.sample;
    return (Rows){(bf16 *)x.at + sample + h.head * x.head, x.row};
}

/* Copy the rows of heads that share their keys, those of a token beside each other, to `own` or back. */
static void copy_queries(const Heads *a, Vectors x, Head h, bf16 *own, int back) {
    for (int64_t i = 0; i < h.queries; i++) {
        int64_t token = a->starts[h.sample] + i / a->per_key, head = h.head * a->per_key + i % a->per_key;
        bf16 *there = (bf16 *)x.at + token * x.row + head * x.head, *here = own + i * a->size;
        for (int64_t k = 0; k < a->size; k += 32)
            _mm512_storeu_si512((back ? there : here) + k, _mm512_loadu_si512((back ? here : there) + k));
    }
}

/* Rows of queries where they are; of heads that share keys, in `own`. */
INLINE Rows place_of_queries(const Heads *a, Vectors x, Head h, bf16 *own) {
    return shares_keys(a) ? (Rows){own, a->size} : rows_of(a, x, h);
}

INLINE Rows queries_of(const Heads *a, Vectors x, Head h, bf16 *own) {
    if (shares_keys(a))
        copy_queries(a, x, h, own, 0);
    return place_of_queries(a, x, h, own);
}

/* Right tiles for sums of `rows` vectors. */
INLINE void pack_summed(Rows from, int64_t rows, int64_t size, bf16 *to) {
    int64_t chunks = parts(rows, 32);
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        pack_pairs(from.at + chunk * 32 * from.row, from.row, least(32, rows - chunk * 32), size / 16, chunks, 0, to + chunk * TILE);
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
            bf16 *at = to.at + (first + i) * to.row + j * 16;
            store_bf16(at, 0xffff, mul(_mm512_load_ps(sums + i * 32), factor));
            store_bf16(at + 16, 0xffff, mul(_mm512_load_ps(sums + i * 32 + 16), factor));
        }
    }
}

/* Numbers from `begin` on of row i of left tiles. */
INLINE bf16 *in_tiles(bf16 *tiles, int64_t chunks, int64_t i, int64_t begin) {
    return tiles + (i / 16 * chunks + begin / 32) * TILE + i % 16 * 32 + begin % 32;
}

/* What a thread has for itself. */
typedef struct {
    float *scores, *sums;
    bf16 *turned, *summed;        /* right tiles: of keys and values, backward of values and keys */
    bf16 *left;                   /* tiles of a block's queries, backward of its gradients */
    bf16 *shares;                 /* left tiles of what vectors are summed by */
    bf16 *queries, *grads;        /* backward: right tiles */
    bf16 *of_scores, *dropped;    /* backward: matrices, of gradients and of probabilities after dropout */
    bf16 *copies[3];              /* of queries that share keys, of outputs, and of gradients */
} Own;

INLINE Own own_of(const Heads *a, int thread) {
    char *at = a->own + thread * a->own_bytes;
    int64_t keys = wide(a->keys), queries = up_to(a->queries, 96);
    Own own;
#define TAKE(name, type, count) own.name = (type *)at, at += (count) * (int64_t)sizeof(type)
    TAKE(scores, float, ROWS * keys);
    TAKE(sums, float, ROWS * 32);
    TAKE(turned, bf16, keys * a->size);
    TAKE(summed, bf16, keys * a->size);
    TAKE(left, bf16, ROWS * a->size);
    TAKE(shares, bf16, ROWS * (keys > queries ? keys : queries));
    TAKE(queries, bf16, queries * a->size);
    TAKE(grads, bf16, queries * a->size);
    TAKE(of_scores, bf16, queries * keys);
    TAKE(dropped, bf16, queries * keys);
    for (int i = 0; i < 3; i++)
        TAKE(copies[i], bf16, shares_keys(a) ? queries * a->size : 0);
    return own;
}

AMX static void heads_forward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *a = pointer;
    const Own own = own_of(a, thread);
    const int64_t size = a->size;
    const vec scale = all(a->drop.scale);
    float powers[LONGEST + 16];
    uint32_t bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const int64_t chunks = parts(h.length, 32), columns = wide(h.keys);
        const Rows key = rows_of(a, a->key, h), query = queries_of(a, a->query, h, own.copies[0]);
        const Rows output = place_of_queries(a, a->output, h, own.copies[1]);
        pack_rows(key.at, key.row, h.length, 2 * chunks, size / 32, size / 32, 1, own.turned);
        pack_summed(rows_of(a, a->value, h), h.length, size, own.summed);
        for (int64_t row = 0; row < h.queries; row += ROWS) {
            int64_t rows = least(ROWS, h.queries - row), used = parts(seen_by(a, h, row + rows - 1), 32);
            pack_rows(query.at + row * query.row, query.row, rows, HIGH, size / 32, size / 32, 0, own.left);
            multiply_each(own.left, own.turned, size, used, own.scores, columns);
            for (int64_t i = 0; i < rows; i++) {
                const float *x = own.scores + i * columns;
                int64_t place = h.place + (row + i) * h.keys;
                int64_t seen = a->hidden && a->hidden[number * a->queries + row + i] ? 0 : seen_by(a, h, row + i);
                const bf16 *bias = a->bias ? (const bf16 *)a->bias + h.sample * a->bias_sample + h.head * a->bias_head + (row + i) * a->bias_row : 0;
                vec largest = all(-__builtin_inff()), sum = zeros();
                REGISTERS(k, some, 0, seen, {
                    vec score = mul(load_fp32(x + k, some), all(a->scale));
                    if (bias)
                        score = add(score, load_bf16(bias + k, some));
                    store_fp32(powers + k, 0xffff, score);
                    largest = larger_some(some, largest, score);
                });
                largest = all(largest_in(largest));
                REGISTERS(k, some, 0, seen, {
                    vec power = exponential(sub(load_fp32(powers + k, some), largest), BF16);
                    store_fp32(powers + k, 0xffff, power);
                    sum = add_some(some, sum, power);
                });
                vec inverse = all(1.0f / sum_of(sum));
                if (a->drops)
                    draw(bits, place, seen, a->drop);
                for (int64_t k = 0; k < used * 32; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k), all_of = k >= h.keys ? 0 : first(h.keys - k);
                    vec value = choose(some, mul(load_fp32(powers + k, 0xffff), inverse), zeros());
                    __m256i low = rounded(value);
                    _mm256_mask_storeu_epi16((bf16 *)a->probabilities + place + k, all_of, low);
                    if (a->drops && some) {
                        vec by = choose(bits_at(bits, place % 4 + k), scale, zeros());
                        low = rounded(mul(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)), choose(some, by, zeros())));
                    }
                    _mm256_storeu_si256((void *)in_tiles(own.shares, used, i, k), low);
                }
            }
            multiply_out(own.shares, used * TILE, used, own.summed, chunks, size, rows, own.sums, all(a->kept), output, row);
        }
        if (shares_keys(a))
            copy_queries(a, a->output, h, own.copies[1], 1);
    }
    _tile_release();
}

AMX static void heads_backward(const void *pointer, int64_t begin, int64_t end, int thread) {
    const Heads *a = pointer;
    const Own own = own_of(a, thread);
    const int64_t size = a->size;
    const vec scale = all(a->drop.scale), kept = all(a->kept);
    uint32_t bits[WORDS(LONGEST)];
    configure_tiles();
    for (int64_t number; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const int64_t chunks = parts(h.length, 32), columns = wide(h.keys), deep = parts(h.queries, 32);
        const Rows value = rows_of(a, a->value, h), of_output = queries_of(a, a->of_output, h, own.copies[1]);
        const Rows of_query = place_of_queries(a, a->of_query, h, own.copies[2]);
        pack_rows(value.at, value.row, h.length, 2 * chunks, size / 32, size / 32, 1, own.turned);
        pack_summed(rows_of(a, a->key, h), h.length, size, own.summed);
        pack_summed(queries_of(a, a->query, h, own.copies[0]), h.queries, size, own.queries);
        pack_summed(of_output, h.queries, size, own.grads);
        for (int64_t row = 0; row < h.queries; row += ROWS) {
            int64_t rows = least(ROWS, h.queries - row), used = parts(seen_by(a, h, row + rows - 1), 32);
            pack_rows(of_output.at + row * of_output.row, of_output.row, rows, HIGH, size / 32, size / 32, 0, own.left);
            multiply_each(own.left, own.turned, size, used, own.scores, columns);
            for (int64_t i = 0; i < rows; i++) {
                float *x = own.scores + i * columns;
                int64_t seen = seen_by(a, h, row + i), place = h.place + (row + i) * h.keys;
                bf16 *of_scores = own.of_scores + (row + i) * columns, *dropped = own.dropped + (row + i) * columns;
                vec along = zeros();
                if (a->drops)
                    draw(bits, place, seen, a->drop);
                for (int64_t k = 0; k < columns; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k);
                    vec value = some ? load_bf16((bf16 *)a->probabilities + place + k, some) : zeros(), left = value;
                    if (a->drops && some)
                        left = mul(value, choose(bits_at(bits, place % 4 + k), scale, zeros()));
                    store_bf16(dropped + k, 0xffff, mul(left, kept));
                    if (!some)
                        continue;
                    vec grad = mul(load_fp32(x + k, some), kept);
                    along = mul_add(left, grad, along);
                }
                along = all(sum_of(along));
                for (int64_t k = 0; k < columns; k += 16) {
                    lanes some = k >= seen ? 0 : first(seen - k);
                    vec y = zeros();
                    if (some) {
                        vec value = load_bf16((bf16 *)a->probabilities + place + k, some), grad = mul(load_fp32(x + k, some), kept);
                        if (a->drops)
                            grad = mul(grad, choose(bits_at(bits, place % 4 + k), scale, zeros()));
                        y = mul(mul(value, sub(grad, along)), all(a->scale));
                    }
                    __m256i low = rounded(y);
                    _mm256_storeu_si256((void *)(of_scores + k), low);
                    if (k < used * 32)
                        _mm256_storeu_si256((void *)in_tiles(own.shares, used, i, k), low);
                }
            }
            multiply_out(own.shares, used * TILE, used, own.summed, chunks, size, rows, own.sums, all(1.0f), of_query, row);
        }
        if (shares_keys(a))
            copy_queries(a, a->of_query, h, own.copies[2], 1);
        for (int64_t key = 0; key < h.keys; key += ROWS) {
            int64_t some = least(ROWS, h.keys - key), from = a->causal ? key * a->per_key / 32 : 0, left = deep - from;
            for (int both = 0; both < 2; both++) {
                const bf16 *matrix = both ? own.dropped : own.of_scores;
                for (int64_t chunk = from; chunk < deep; chunk++)
                    pack_pairs(matrix + chunk * 32 * columns + key, columns, least(32, h.queries - chunk * 32), HIGH, left, 1,
                               own.shares + (chunk - from) * TILE);
                Rows to = rows_of(a, both ? a->of_value : a->of_key, h);
                multiply_out(own.shares, left * TILE, left, (both ? own.grads : own.queries) + from * TILE, deep, size, some, own.sums,
                             all(1.0f), to, key);
            }
        }
    }
    _tile_release();
}

/* Bytes of `own` for a thread. */
EXPORT int64_t heads_bytes(const Heads *a) {
    int64_t keys = wide(a->keys), queries = up_to(a->queries, 96), more = keys > queries ? keys : queries;
    int64_t sums = ROWS * keys + ROWS * 32, packed = 2 * (keys + queries) * a->size + ROWS * (a->size + more);
    int64_t copies = shares_keys(a) ? 3 * queries * a->size : 0;
    return up_to(4 * sums + 2 * (packed + 2 * queries * keys + copies), 4096);
}

/* `size` is a multiple of 32, and there are at most LONGEST keys; `own` starts on a cache line. */
EXPORT void heads(Heads *a, int back, int threads) {
    int64_t next = 0;
    a->next = &next;
    in_shares(threads, back ? heads_backward : heads_forward, a, threads);
}

#endif
