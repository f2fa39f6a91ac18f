#include "vectors.h"

#define PIECE 1024 /* elements */

typedef struct {
    const bf16 *input;
    float *output;
    int64_t count;
} Widened;

static void widen_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Widened *a = pointer;
    int64_t end = end_piece * PIECE < a->count ? end_piece * PIECE : a->count;
    REGISTERS(i, some, first_piece * PIECE, end, {
        vec values = load_bf16(a->input + i, some);
        if (some == 0xffff)
            stream_fp32(a->output + i, values);
        else
            store_fp32(a->output + i, some, values);
    });
    _mm_sfence();
}

/* `output` starts on a cache line, and is not wanted soon: it does not go through the caches. */
EXPORT void widen(const bf16 *input, float *output, int64_t count, int threads) {
    Widened arguments = {input, output, count};
    in_threads(threads, widen_pieces, &arguments, (count + PIECE - 1) / PIECE);
}
