#include "vectors.h"

#define PIECE 1024 /* elements */

typedef struct {
    const bf16 *input;
    float *output;
    int64_t count;
} Widened;

static void widen_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Widened *a = pointer;
    int64_t end = end_piece * PIECE < a->count ? end_piece * PIECE : a->count, whole = end / 16 * 16;
    int64_t i = first_piece * PIECE;
    for (; i < whole; i += 16)
        stream_fp32(a->output + i, load_bf16(a->input + i, 0xffff));
    if (i < end)
        store_fp32(a->output + i, first(end - i), load_bf16(a->input + i, first(end - i)));
    _mm_sfence();
}

/* `output` starts on a cache line, and is not wanted soon: it does not go through the caches. */
EXPORT void widen(const bf16 *input, float *output, int64_t count, int threads) {
    Widened arguments = {input, output, count};
    in_threads(threads, widen_pieces, &arguments, (count + PIECE - 1) / PIECE);
}
