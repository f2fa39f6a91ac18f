/* Attention, a head of a sample at a time: its scores stay in L2, and vectors are read where the layers before have
 * left them. ../attention_heads.py has the same structures. Numbers are bf16 or fp32; distances count numbers. */

#include "mask.h"

#define LONGEST 1024 /* keys */

typedef struct {
    void *at;
    int64_t sample_stride, head_stride, row_stride; /* numbers from one to the next */
} Vectors;

typedef struct {
    Vectors query, key, value, output; /* of (samples, heads, rows), `size` numbers each */
    Vectors of_output, of_query, of_key, of_value;
    void *probabilities; /* of each sample (heads, queries, keys) */
    const void *bias;    /* or none: rows of keys */
    int64_t bias_sample, bias_head, bias_row;
    const int64_t *lengths; /* of each sample's keys, or none */
    const uint8_t *hidden;  /* queries that see no key, whose output is 0: (samples, heads, queries), or none */
    /* samples are documents of a row, with `lengths` tokens from `starts` on and probabilities from `places` on; heads
     * are those of keys, `per_key` heads of queries share each; or none */
    const int64_t *starts, *places;
    int64_t samples, heads, queries, keys, size; /* of documents: queries and keys of the longest */
    int64_t per_key; /* causal: queries that see the last key, and as many more each one before; of documents: heads that
                        share keys */
    int64_t causal;
    float scale, kept; /* kept: what the output is multiplied by */
    int64_t drops;
    Drop drop;
    char *own;
    int64_t own_bytes;
    int64_t *next;
} Heads;

typedef struct {
    int64_t sample, head, keys, queries, length; /* length: keys that queries see */
    int64_t place;                               /* of its probabilities */
} Head;

INLINE int64_t up_to(int64_t count, int64_t size) { return parts(count, size) * size; }

INLINE Head head_of(const Heads *a, int64_t number) {
    int64_t sample = number / a->heads, head = number % a->heads, length = a->lengths ? a->lengths[sample] : a->keys;
    if (!a->starts)
        return (Head){sample, head, a->keys, a->queries, length, number * a->queries * a->keys};
    int64_t queries = length * a->per_key;
    return (Head){sample, head, length, queries, length, a->places[sample] + head * queries * length};
}

INLINE int shares_keys(const Heads *a) { return a->starts && a->per_key > 1; }

INLINE int64_t seen_by(const Heads *a, Head h, int64_t row) {
    return a->causal ? h.keys - (h.queries - 1 - row) / a->per_key : h.length;
}
