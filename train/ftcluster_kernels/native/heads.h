/* Attention, one head of one sample at a time: the scores of the head stay in L2, and queries, keys and values are read
 * in place, from the outputs of the previous layers. ../attention_heads.py declares the same structures. Elements are bf16
 * or fp32; strides are in elements. */

#include "mask.h"

#define LONGEST 1024 /* maximum number of keys */

typedef struct {
    void *at;
    int64_t sample_stride, head_stride, row_stride; /* elements between two adjacent samples, heads or rows */
} Vectors;

typedef struct {
    Vectors query, key, value, output; /* (samples, heads, rows, `size`) */
    Vectors of_output, of_query, of_key, of_value; /* gradients of these vectors */
    void *probabilities; /* (heads, queries, keys) for each sample; NULL if there is no backward pass */
    const void *bias;    /* rows with a term for the score of each key, or NULL */
    int64_t bias_sample, bias_head, bias_row; /* strides of the bias */
    void *of_bias; /* backward: gradients of the scores, with the shape of `probabilities`, or NULL */
    const int64_t *lengths; /* number of keys of each sample, or NULL if all samples have `keys` */
    const uint8_t *hidden;  /* (samples, heads, queries): 1 if a query sees no key, so that its output is 0; or NULL */
    /* only for packed sequences: sequence i has `lengths[i]` tokens beginning at `starts[i]`, and its probabilities
     * begin at `places[i]`. `heads` counts the heads of keys, each with `per_key` heads of queries. */
    const int64_t *starts, *places;
    int64_t samples, heads, queries, keys, size; /* for packed sequences: queries and keys of the longest sequence */
    /* number of queries per key. With `causal`, the last `per_key` queries see all keys, the `per_key` queries before
     * them see one key fewer, and so on. */
    int64_t per_key;
    int64_t causal;
    float scale, kept; /* scale: factor for the scores; kept: factor for the output */
    int64_t drops;
    Drop drop;
    char *own;         /* buffers of the threads */
    int64_t own_bytes; /* bytes of `own` per thread */
    int64_t *next;     /* number of the next head to compute, counted over all samples */
} Heads;

typedef struct {
    int64_t sample, head, keys, queries, length; /* length: number of leading keys that are not masked */
    int64_t offset;                              /* index of the head's first probability */
} Head;

INLINE int64_t round_up(int64_t count, int64_t size) { return ceil_div(count, size) * size; }

INLINE Head head_of(const Heads *args, int64_t number) {
    int64_t sample = number / args->heads, head = number % args->heads,
            length = args->lengths ? args->lengths[sample] : args->keys;
    if (!args->starts)
        return (Head){sample, head, args->keys, args->queries, length, number * args->queries * args->keys};
    int64_t queries = length * args->per_key;
    return (Head){sample, head, length, queries, length, args->places[sample] + head * queries * length};
}

INLINE int shares_keys(const Heads *args) { return args->starts && args->per_key > 1; }

INLINE int64_t seen_by(const Heads *args, Head h, int64_t row) {
    return args->causal ? h.keys - (h.queries - 1 - row) / args->per_key : h.length;
}
