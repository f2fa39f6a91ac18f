#include "vectors.h"

#include "mask.h"

typedef struct {
    const void *input;
    void *output;
    int64_t count;
    Drop drop;
} Dropout;

#define DROPOUT(name, type, read, write)                                                                        \
    static void name##_loop(const void *pointer, int64_t first_piece, int64_t end_piece,                         \
                            int thread) {                                                                       \
        const Dropout *a = pointer;                                                                             \
        const type *input = a->input;                                                                           \
        type *output = a->output;                                                                               \
        const __m512 scale = _mm512_set1_ps(a->drop.scale);                                                     \
        uint32_t bits[WORDS(PIECE)];                                                                            \
        for (int64_t begin = first_piece * PIECE; begin < end_piece * PIECE; begin += PIECE) {                  \
            int64_t end = begin + PIECE < a->count ? begin + PIECE : a->count;                                  \
            draw(bits, begin, end - begin, a->drop);                                                            \
            for (int64_t i = begin; i < end; i += 16) {                                                         \
                __mmask16 some = first(end - i);                                                                \
                /* times 0, not 0: so that NaN stays */                                                         \
                __m512 by = _mm512_maskz_mov_ps(bits_at(bits, i - begin), scale);                               \
                write(output + i, some, _mm512_mul_ps(read(input + i, some), by));                              \
            }                                                                                                   \
        }                                                                                                       \
    }                                                                                                           \
    EXPORT void name(const void *input, void *output, int64_t count, uint64_t seed, int64_t threshold, float scale, \
                     int threads) {                                                                             \
        Dropout arguments = {input, output, count, {seed, threshold, scale}};                                   \
        in_threads(threads, name##_loop, &arguments, (count + PIECE - 1) / PIECE);                              \
    }

DROPOUT(dropout_bf16, bf16, load, store)
DROPOUT(dropout_fp32, float, load_fp32, store_fp32)

