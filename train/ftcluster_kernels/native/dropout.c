#include "vectors.h"

#include "mask.h"

typedef struct {
    int type;
    const void *input;
    void *output;
    int64_t count;
    Drop drop;
} Dropout;

INLINE void dropout_pieces(const Dropout *a, int64_t first_piece, int64_t end_piece, int thread, int type) {
    const vec scale = all(a->drop.scale);
    uint32_t bits[WORDS(PIECE)];
    for (int64_t begin = first_piece * PIECE; begin < end_piece * PIECE; begin += PIECE) {
        int64_t end = begin + PIECE < a->count ? begin + PIECE : a->count;
        draw(bits, begin, end - begin, a->drop);
        REGISTERS(i, some, begin, end, {
            /* times 0, not 0: so that NaN stays */
            vec by = choose(bits_at(bits, i - begin), scale, zeros());
            store(a->output, i, some, mul(load(a->input, i, some, type), by), type);
        });
    }
}

LOOP_BY_TYPE(dropout_pieces, Dropout)

EXPORT void dropout(int64_t type, const void *input, void *output, int64_t count, uint64_t seed, int64_t threshold,
                    float scale, int threads) {
    Dropout arguments = {type, input, output, count, {seed, threshold, scale}};
    in_threads(threads, dropout_pieces_loop, &arguments, (count + PIECE - 1) / PIECE);
}
