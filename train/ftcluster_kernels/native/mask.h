/* Dropout masks. The backward pass draws the same mask again instead of storing it. */

#define PIECE 2048 /* number of elements of a mask that are drawn at once: a multiple of 4 */
#define WORDS(elements) ((elements) / 32 + 3)

/* The parameters of a dropout mask; see dropout.py. */
typedef struct {
    uint64_t seed;
    int32_t threshold;
    float scale;
} Drop;

/* Return SplitMix64's output for eight states (Steele, Lea and Flood 2014). */
INLINE u64x8 mix(u64x8 z) {
    z = times(XOR_SHIFTED(z, 30), 0xBF58476D1CE4E5B9);
    z = times(XOR_SHIFTED(z, 27), 0x94D049BB133111EB);
    return XOR_SHIFTED(z, 31);
}

/* Set a bit for each kept element among `count` elements, beginning at element `begin`, which has bit begin % 4. */
INLINE void draw(uint32_t *bits, int64_t begin, int64_t count, Drop drop) {
    const uint64_t gamma = 0x9E3779B97F4A7C15;
    u64x8 states = counting(drop.seed + begin / 4 * gamma, gamma);
    int64_t word_count = (begin % 4 + count + 31) / 32;
    for (int64_t i = 0; i < word_count; i++, states = plus(states, 8 * gamma))
        bits[i] = at_least(mix(states), drop.threshold);
    bits[word_count] = 0;
}

INLINE lanes bits_at(const uint32_t *bits, int64_t number) {
    uint64_t two_words = bits[number / 32] | (uint64_t)bits[number / 32 + 1] << 32;
    return two_words >> number % 32;
}
