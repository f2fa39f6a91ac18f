#include "vectors.h"

#define PIECE 1024 /* number of elements that a thread converts at once */

typedef struct {
    const bf16 *input;
    float *output;
    int64_t count;
} Widened;

static void widen_pieces(const void *pointer, int64_t first_piece, int64_t end_piece, int thread) {
    const Widened *args = pointer;
    int64_t end = end_piece * PIECE < args->count ? end_piece * PIECE : args->count;
    REGISTERS(i, active, first_piece * PIECE, end, {
        vec values = load_bf16(args->input + i, active);
        if (active == 0xffff)
            stream_fp32(args->output + i, values);
        else
            store_fp32(args->output + i, active, values);
    });
    _mm_sfence();
}

/* `output` starts on a cache line. The writes bypass the caches, because nothing will read the output soon. */
EXPORT void widen(const bf16 *input, float *output, int64_t count, int threads) {
    Widened arguments = {input, output, count};
    in_threads(threads, widen_pieces, &arguments, (count + PIECE - 1) / PIECE);
}
