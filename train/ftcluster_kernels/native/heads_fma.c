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

/* What a thread has for itself. */
typedef struct {
    float *scores, *sums; /* of a sliver of queries: by key, and by number of an output */
    word *rows;           /* vectors of a head, where no word has two numbers of theirs or they share keys */
    word *turned, *summed; /* right slivers: of keys and values, backward of values and keys */
    word *left;            /* slivers of queries, backward of the gradients of outputs */
    word *shares;          /* a left sliver of what vectors are summed by */
    word *queries, *grads; /* backward: right slivers */
    char *of_scores; /* backward: a matrix of gradients */
    char *dropped;   /* probabilities after dropout: of a sliver of queries, backward a matrix */
} Own;

/* The places of these in `at`, where numbers in bf16 need less; returns the bytes of all. */
static int64_t own_of(const Heads *a, char *at, Own *own) {
    const int64_t keys = up_to(a->keys, MULTIPLE), queries = up_to(a->queries, HIGH), longest = most(keys, queries);
    const char *first = at;
#define TAKE(name, type, count) own->name = (type *)at, at += up_to((count) * (int64_t)sizeof(type), 64)
    TAKE(scores, float, HIGH * keys);
    TAKE(sums, float, HIGH * a->size);
    TAKE(rows, word, longest * a->size);
    TAKE(turned, word, keys * a->size);
    TAKE(summed, word, keys * a->size);
    TAKE(left, word, queries * a->size + SQUARE);
    TAKE(shares, word, HIGH * longest + SQUARE);
    TAKE(queries, word, queries * a->size);
    TAKE(grads, word, queries * a->size);
    TAKE(of_scores, char, queries * keys * (int64_t)sizeof(float));
    TAKE(dropped, char, queries * keys * (int64_t)sizeof(float));
    return up_to(at - first, 4096);
}

/* Which number a vector begins with, from `x.at` on; `of_queries`: heads that share keys have theirs beside each other. */
INLINE int64_t place_of(const Heads *a, Vectors x, Head h, int64_t i, int of_queries) {
    if (of_queries && shares_keys(a))
        return (a->starts[h.sample] + i / a->per_key) * x.row + (h.head * a->per_key + i % a->per_key) * x.head;
    return (a->starts ? a->starts[h.sample] * x.row : h.sample * x.sample) + h.head * x.head + i * x.row;
}

INLINE int64_t words_of(int64_t numbers, int type) { return parts(numbers, in_word(type)); }

/* `count` vectors, where they are or in `own`; `apart`: words from one to the next. */
INLINE const word *vectors_of(const Heads *a, Vectors x, Head h, int64_t count, int of_queries, word *own, int64_t *apart, int type) {
    *apart = x.row / in_word(type);
    if (x.row % in_word(type) == 0 && !(of_queries && shares_keys(a)))
        return (const void *)((const char *)x.at + place_of(a, x, h, 0, of_queries) * size_of(type));
    *apart = words_of(a->size, type);
    for (int64_t i = 0; i < count; i++) {
        const char *from = (const char *)x.at + place_of(a, x, h, i, of_queries) * size_of(type);
        for (int64_t k = 0; k < *apart; k += 16)
            store_fp32((float *)own + i * *apart + k, 0xffff, load_fp32((const float *)from + k, 0xffff));
    }
    return own;
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

/* Of a row of scores, which is overwritten: the probabilities, to their place, and those after dropout, 0 up to `columns`. */
INLINE void softmax_row(const Heads *a, Head h, int64_t number, int64_t row, float *x, char *dropped, int64_t columns, int type) {
    uint32_t bits[WORDS(LONGEST)];
    const int64_t place = h.place + row * h.keys, bias = h.sample * a->bias_sample + h.head * a->bias_head + row * a->bias_row;
    const int64_t seen = a->hidden && a->hidden[number * a->queries + row] ? 0 : seen_by(a, h, row);
    vec largest = all(-__builtin_inff()), sum = zeros();
    REGISTERS(k, some, 0, seen, {
        vec score = mul(load_fp32(x + k, 0xffff), all(a->scale));
        if (a->bias)
            score = add(score, load(a->bias, bias + k, some, type));
        store_fp32(x + k, 0xffff, score);
        largest = larger_some(some, largest, score);
    });
    largest = all(largest_in(largest));
    REGISTERS(k, some, 0, seen, {
        vec power = exponential(sub(load_fp32(x + k, 0xffff), largest), type);
        store_fp32(x + k, 0xffff, power);
        sum = add_some(some, sum, power);
    });
    const vec inverse = all(1.0f / sum_of(sum));
    if (a->drops)
        draw(bits, place, seen, a->drop);
    REGISTERS(k, some, 0, seen, {
        vec value = choose(some, mul(load_fp32(x + k, 0xffff), inverse), zeros());
        store_number(a->probabilities, place + k, some, value, type);
        if (type == BF16)
            value = load(a->probabilities, place + k, some, type);
        if (a->drops)
            value = mul(value, choose(bits_at(bits, place % 4 + k), all(a->drop.scale), zeros()));
        store_number(dropped, k, 0xffff, value, type);
    });
    REGISTERS(k, some, seen, h.keys, { store_number(a->probabilities, place + k, some, zeros(), type); });
    for (int64_t k = up_to(seen, 16); k < columns; k += 16)
        store_number(dropped, k, 0xffff, zeros(), type);
}

INLINE void forward(const Heads *a, int thread, int type) {
    Own own;
    own_of(a, a->own + thread * a->own_bytes, &own);
    const int64_t size = a->size, words = words_of(size, type), columns = up_to(a->keys, MULTIPLE), apart_rows = words_of(columns, type);
    for (int64_t number, apart; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const word *from = vectors_of(a, a->key, h, h.length, 0, own.rows, &apart, type);
        pack_vectors(from, apart, h.length, words, WIDE, own.turned);
        from = vectors_of(a, a->value, h, h.length, 0, own.rows, &apart, type);
        pack_summed(from, apart, h.length, size, type, own.summed);
        from = vectors_of(a, a->query, h, h.queries, 1, own.rows, &apart, type);
        pack_vectors(from, apart, h.queries, words, HIGH, own.left);
        for (int64_t row = 0; row < h.queries; row += HIGH) {
            const int64_t rows = least(HIGH, h.queries - row), seen = seen_by(a, h, row + rows - 1), used = up_to(seen, MULTIPLE);
            multiply_all(own.left + row * words, own.turned, WIDE * words, words, parts(seen, WIDE), own.scores, columns, type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row(a, h, number, row + i, own.scores + i * columns, own.dropped + i * columns * size_of(type), used, type);
            pack_along((const word *)own.dropped, apart_rows, rows, words_of(used, type), HIGH, own.shares);
            multiply_all(own.shares, own.summed, WIDE * words_of(h.length, type), words_of(seen, type), size / WIDE, own.sums, size, type);
            put(a, own.sums, all(a->kept), a->output, h, row, rows, 1, type);
        }
    }
}

/* Of a row of gradients of probabilities: those of its scores, and the probabilities after dropout, 0 up to `columns`. */
INLINE void softmax_row_back(const Heads *a, Head h, int64_t row, const float *x, char *of_scores, char *dropped, int64_t columns, int type) {
    uint32_t bits[WORDS(LONGEST)];
    const int64_t seen = seen_by(a, h, row), place = h.place + row * h.keys;
    const vec kept = all(a->drops ? a->kept * a->drop.scale : a->kept);
    vec along = zeros();
    if (a->drops)
        draw(bits, place, seen, a->drop);
    REGISTERS(k, some, 0, seen, {
        vec by = a->drops ? choose(bits_at(bits, place % 4 + k), kept, zeros()) : kept;
        vec left = mul(load(a->probabilities, place + k, some, type), by);
        store_number(dropped, k, 0xffff, left, type);
        along = add_some(some, along, mul(left, load_fp32(x + k, 0xffff)));
    });
    along = all(sum_of(along));
    REGISTERS(k, some, 0, seen, {
        vec by = a->drops ? choose(bits_at(bits, place % 4 + k), kept, zeros()) : kept;
        vec grad = sub(mul(load_fp32(x + k, 0xffff), by), along), value = load(a->probabilities, place + k, some, type);
        store_number(of_scores, k, 0xffff, choose(some, mul(mul(value, grad), all(a->scale)), zeros()), type);
    });
    for (int64_t k = up_to(seen, 16); k < columns; k += 16) {
        store_number(dropped, k, 0xffff, zeros(), type);
        store_number(of_scores, k, 0xffff, zeros(), type);
    }
}

INLINE void backward(const Heads *a, int thread, int type) {
    Own own;
    own_of(a, a->own + thread * a->own_bytes, &own);
    const int64_t size = a->size, words = words_of(size, type), columns = up_to(a->keys, MULTIPLE), row_bytes = columns * size_of(type);
    for (int64_t number, apart; (number = next_of(a->next)) < a->samples * a->heads;) {
        const Head h = head_of(a, number);
        const word *from = vectors_of(a, a->value, h, h.length, 0, own.rows, &apart, type);
        pack_vectors(from, apart, h.length, words, WIDE, own.turned);
        from = vectors_of(a, a->key, h, h.length, 0, own.rows, &apart, type);
        pack_summed(from, apart, h.length, size, type, own.summed);
        from = vectors_of(a, a->query, h, h.queries, 1, own.rows, &apart, type);
        pack_summed(from, apart, h.queries, size, type, own.queries);
        from = vectors_of(a, a->of_output, h, h.queries, 1, own.rows, &apart, type);
        pack_summed(from, apart, h.queries, size, type, own.grads);
        pack_vectors(from, apart, h.queries, words, HIGH, own.left);
        for (int64_t row = 0; row < h.queries; row += HIGH) {
            const int64_t rows = least(HIGH, h.queries - row), seen = seen_by(a, h, row + rows - 1);
            multiply_all(own.left + row * words, own.turned, WIDE * words, words, parts(seen, WIDE), own.scores, columns, type);
            for (int64_t i = 0; i < rows; i++)
                softmax_row_back(a, h, row + i, own.scores + i * columns, own.of_scores + (row + i) * row_bytes,
                                 own.dropped + (row + i) * row_bytes, up_to(h.keys, MULTIPLE), type);
            pack_along((const word *)(own.of_scores + row * row_bytes), words_of(columns, type), rows,
                       words_of(up_to(seen, MULTIPLE), type), HIGH, own.shares);
            multiply_all(own.shares, own.summed, WIDE * words_of(h.length, type), words_of(seen, type), size / WIDE, own.sums, size, type);
            put(a, own.sums, all(1.0f), a->of_query, h, row, rows, 1, type);
        }
        for (int64_t key = 0; key < h.keys; key += HIGH) {
            const int64_t rows = least(HIGH, h.keys - key), before = a->causal ? key * a->per_key / in_word(type) : 0; /* words */
            const int64_t deep = h.queries - before * in_word(type);
            for (int both = 0; both < 2; both++) {
                const char *matrix = (both ? own.dropped : own.of_scores) + before * in_word(type) * row_bytes + key * size_of(type);
                pack_across(matrix, columns, rows, 1, deep, HIGH, type, own.shares);
                multiply_all(own.shares, (both ? own.grads : own.queries) + before * WIDE, WIDE * words_of(h.queries, type),
                             words_of(deep, type), size / WIDE, own.sums, size, type);
                put(a, own.sums, all(1.0f), both ? a->of_value : a->of_key, h, key, rows, 0, type);
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
    Own own;
    return own_of(a, 0, &own);
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
