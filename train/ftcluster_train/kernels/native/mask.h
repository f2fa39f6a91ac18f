/* Masks of dropout, which are drawn again in the backward pass. */

#define PIECE 2048 /* elements of a mask that are drawn at once: a multiple of 4 */
#define WORDS(elements) ((elements) / 32 + 3)

/* What decides which elements are kept; see dropout.py. */
typedef struct {
    uint64_t seed;
    int32_t threshold;
    float scale;
} Drop;

/* SplitMix64's function of eight states (Steele, Lea and Flood 2014). */
static inline __m512i mix(__m512i z) {
    const __m512i first = _mm512_set1_epi64(0xBF58476D1CE4E5B9), second = _mm512_set1_epi64(0x94D049BB133111EB);
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)), first);
    z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)), second);
    return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

/* A bit for each of `count` elements from number `begin` on, the first one at bit begin % 4:
 * whether it is kept. */
static inline void draw(uint32_t *bits, int64_t begin, int64_t count, Drop drop) {
    const uint64_t gamma = 0x9E3779B97F4A7C15;
    const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i step = _mm512_set1_epi64(8 * gamma), level = _mm512_set1_epi16(drop.threshold);
    __m512i state = _mm512_add_epi64(_mm512_mullo_epi64(lanes, _mm512_set1_epi64(gamma)),
                                     _mm512_set1_epi64(drop.seed + begin / 4 * gamma));
    int64_t words = (begin % 4 + count + 31) / 32;
    for (int64_t i = 0; i < words; i++, state = _mm512_add_epi64(state, step))
        bits[i] = _mm512_cmpge_epi16_mask(mix(state), level);
    bits[words] = 0;
}

static inline __mmask16 bits_at(const uint32_t *bits, int64_t place) {
    uint64_t two = bits[place / 32] | (uint64_t)bits[place / 32 + 1] << 32;
    return two >> place % 32;
}
