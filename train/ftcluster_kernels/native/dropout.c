#include "vectors.h"

#include "mask.h"

typedef struct {
    int type;
    const void *input;
    void *output;
    int64_t count;
    Drop drop;
} Dropout;

INLINE void dropout_pieces(const Dropout *args, int64_t first_piece, int64_t end_piece, int thread, int type) {
    const vec scale = broadcast(args->drop.scale);
    uint32_t kept_bits[WORDS(PIECE)];
    for (int64_t begin = first_piece * PIECE; begin < end_piece * PIECE; begin += PIECE) {
        int64_t end = begin + PIECE < args->count ? begin + PIECE : args->count;
        draw(kept_bits, begin, end - begin, args->drop);
        REGISTERS(i, active, begin, end, {
            /* multiply by 0 instead of storing 0, so that NaN stays NaN */
            vec factor = choose(bits_at(kept_bits, i - begin), scale, zeros());
            store(args->output, i, active, mul(load(args->input, i, active, type), factor), type);
        });
    }
}

LOOP_BY_TYPE(dropout_pieces, Dropout)

EXPORT void dropout(int64_t type, const void *input, void *output, int64_t count, uint64_t seed, int64_t threshold,
                    float scale, int threads) {
    Dropout arguments = {type, input, output, count, {seed, threshold, scale}};
    in_threads(threads, dropout_pieces_loop, &arguments, (count + PIECE - 1) / PIECE);
}
