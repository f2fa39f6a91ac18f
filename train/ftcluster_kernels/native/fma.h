/* Products of matrices by multiply-adds, in fp32, and in bf16 where the CPU adds two products at once (AVX512-BF16).
 *
 * After Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008): sums stay in registers, and
 * factors are packed as slivers of some left rows and of some right columns, along the sum. They are words of 32 bits: a
 * number of fp32, or two of bf16 that are side by side along the sum. */

typedef uint32_t word;

#define BLOCK 64 /* words along the sum that are packed before those of the next sliver: a page's lines */

INLINE int64_t size_of(int type) { return type == FP32 ? 4 : 2; }
INLINE int64_t in_word(int type) { return type == FP32 ? 1 : 2; }

/* A sliver of `wide` rows, of which there are `rows`, `apart` words from each other, along the sum. */
INLINE void pack_along(const word *from, int64_t apart, int64_t rows, int64_t words, int wide, word *to) {
    int64_t k = 0;
    for (; k + SQUARE <= words; k += SQUARE)
        for (int i = 0; i < wide; i += SQUARE)
            turn_square(from + i * apart + k, apart, least(rows, wide) - i, to + k * wide + i, wide);
    for (; k < words; k++)
        for (int i = 0; i < wide; i++)
            to[k * wide + i] = i < rows ? from[i * apart + k] : 0;
}

/* One word for each of `wide` columns, of which there are `columns`; `beside`: the next row, if it is there. */
INLINE void pack_row(const void *row, const void *beside, int64_t columns, int wide, int type, word *to) {
    for (int i = 0; i < wide; i++)
        if (i >= columns)
            to[i] = 0;
        else
            to[i] = type == FP32 ? ((const word *)row)[i] : ((const bf16 *)row)[i] | (beside ? (word)((const bf16 *)beside)[i] << 16 : 0);
}

/* The same of `wide` columns that are there; compilers do not find it. */
INLINE void pair_columns(const bf16 *row, const bf16 *beside, int wide, word *to) {
    int i = 0;
    for (; i + 8 <= wide; i += 8) {
        __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(row + i)));
        __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(beside + i)));
        _mm256_storeu_si256((void *)(to + i), _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
    }
    for (; i + 4 <= wide; i += 4)
        _mm_storeu_si128((void *)(to + i), _mm_unpacklo_epi16(_mm_loadl_epi64((const void *)(row + i)), _mm_loadl_epi64((const void *)(beside + i))));
    for (; i < wide; i++)
        to[i] = row[i] | (word)beside[i] << 16;
}

/* Slivers of `wide` columns side by side of `depth` rows, which are `apart` numbers from each other. */
INLINE void pack_across(const void *from, int64_t apart, int64_t columns, int64_t slivers, int64_t depth, int wide, int type, word *to) {
    const int64_t words = parts(depth, in_word(type)), row_size = apart * size_of(type);
    for (int64_t block = 0; block < words; block += BLOCK)
        for (int64_t sliver = 0; sliver < slivers; sliver++)
            for (int64_t k = block; k < least(words, block + BLOCK); k++) {
                const char *row = (const char *)from + k * in_word(type) * row_size + sliver * wide * size_of(type);
                const char *beside = type == BF16 && 2 * k + 1 == depth ? 0 : row + row_size;
                word *here = to + (sliver * words + k) * wide;
                if (columns - sliver * wide >= wide && beside) { /* these are most */
                    if (type == BF16)
                        pair_columns((const bf16 *)row, (const bf16 *)beside, wide, here);
                    else
                        pack_row(row, beside, wide, wide, type, here);
                } else
                    pack_row(row, beside, columns - sliver * wide, wide, type, here);
            }
}

INLINE vec add_product(vec sum, vec left, vec right, int type) {
#ifdef WITH_AMX /* compilers that know AMX know AVX512-BF16, but only where all of the code may have it */
    if (type == BF16) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(left), "v"(right));
        return sum;
    }
#endif
    return mul_add(left, right, sum);
}

/* To `place` on; what is less than the least normal number is 0 in bf16, as it is in sums of products. */
INLINE void store_number(void *numbers, int64_t place, lanes some, vec values, int type) {
#ifdef WITH_AMX
    if (type == BF16) {
        __m256i low;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(low) : "v"(values));
        if (some == 0xffff)
            _mm256_storeu_si256((void *)((bf16 *)numbers + place), low);
        else
            _mm256_mask_storeu_epi16((bf16 *)numbers + place, some, low);
        return;
    }
#endif
    store(numbers, place, some, values, type);
}

/* `high` rows of sums of packed slivers, `registers` each, to rows that are `apart`; a cache line of what is `ahead` comes
 * into L2 with each word. */
INLINE void multiply(const word *left, const word *right, int64_t words, float *sums, int64_t apart, int fresh,
                     const char *ahead, int64_t step, int type, const int high, const int registers) {
    const int wide = 16 * registers;
    vec s[12][3];
#pragma GCC unroll 12
    for (int i = 0; i < high; i++)
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            s[i][j] = fresh ? zeros() : load_fp32(sums + i * apart + 16 * j, 0xffff);
    for (int64_t k = 0; k < words; k++, ahead += step) {
        vec beside[3];
        _mm_prefetch(ahead, _MM_HINT_T1);
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            beside[j] = load_fp32((const float *)right + k * wide + 16 * j, 0xffff);
#pragma GCC unroll 12
        for (int i = 0; i < high; i++) {
            vec one = all(((const float *)left)[k * high + i]);
#pragma GCC unroll 3
            for (int j = 0; j < registers; j++)
                s[i][j] = add_product(s[i][j], one, beside[j], type);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < high; i++)
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            store_fp32(sums + i * apart + 16 * j, 0xffff, s[i][j]);
}
