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
INLINE words mix(words z) {
    z = times(XOR_SHIFTED(z, 30), 0xBF58476D1CE4E5B9);
    z = times(XOR_SHIFTED(z, 27), 0x94D049BB133111EB);
    return XOR_SHIFTED(z, 31);
}

/* A bit for each of `count` elements from number `begin` on, the first one at bit begin % 4:
 * whether it is kept. */
INLINE void draw(uint32_t *bits, int64_t begin, int64_t count, Drop drop) {
    const uint64_t gamma = 0x9E3779B97F4A7C15;
    words state = counting(drop.seed + begin / 4 * gamma, gamma);
    int64_t needed = (begin % 4 + count + 31) / 32;
    for (int64_t i = 0; i < needed; i++, state = plus(state, 8 * gamma))
        bits[i] = at_least(mix(state), drop.threshold);
    bits[needed] = 0;
}

INLINE lanes bits_at(const uint32_t *bits, int64_t place) {
    uint64_t two = bits[place / 32] | (uint64_t)bits[place / 32 + 1] << 32;
    return two >> place % 32;
}
