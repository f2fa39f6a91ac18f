/* Attention, one head of one sample at a time: its scores stay in L2, and queries, keys and values are read where the
 * layers before wrote them. ../attention_heads.py has the same structures. Elements are bf16 or fp32; strides count
 * elements. */

#include "mask.h"

#define LONGEST 1024 /* maximum number of keys */

typedef struct {
    void *at;
    int64_t sample_stride, head_stride, row_stride; /* elements from one sample, head or row to the next */
} Vectors;

typedef struct {
    Vectors query, key, value, output; /* (samples, heads, rows, `size`) */
    Vectors of_output, of_query, of_key, of_value; /* gradients of these vectors */
    void *probabilities; /* probabilities of each sample (heads, queries, keys) */
    const void *bias;    /* rows with a value for each key, or NULL */
    int64_t bias_sample, bias_head, bias_row;
    const int64_t *lengths; /* number of each sample's keys, or NULL */
    const uint8_t *hidden;  /* (samples, heads, queries): 1 if a query sees no key, so that its output is 0; or NULL */
    /* for packed sequences, or none: sample i is a sequence of `lengths[i]` tokens from `starts[i]` on, with its
     * probabilities from `places[i]` on. Heads are then those of the keys, each with `per_key` heads of queries. */
    const int64_t *starts, *places;
    int64_t samples, heads, queries, keys, size; /* for packed sequences: queries and keys of the longest one */
    /* heads of queries that share a head of keys. With `causal`, the last `per_key` queries see all keys, the `per_key`
     * before them one key fewer, and so on. */
    int64_t per_key;
    int64_t causal;
    float scale, kept; /* kept: factor of the output */
    int64_t drops;
    Drop drop;
    char *own;
    int64_t own_bytes;
    int64_t *next;
} Heads;

typedef struct {
    int64_t sample, head, keys, queries, length; /* length: keys that queries may see */
    int64_t offset;                              /* index of its first probability */
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
