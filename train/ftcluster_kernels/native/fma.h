/* Matrix multiplication by multiply-adds in vector registers: in fp32, and in bf16 on CPUs with AVX512-BF16, whose
 * instruction adds the products of two pairs of bf16 elements.
 *
 * The method comes from Goto and van de Geijn (Anatomy of High-Performance Matrix Multiplication, 2008): a block of
 * C = A B stays in registers. A is packed as slivers of a few rows, and B as slivers of a few columns; both are stored
 * along the depth. Slivers consist of 32-bit words: one element of fp32, or two elements of bf16 that are adjacent
 * along the depth.
 *
 *         word 0   a00 a10 a20 ... a(rows-1)0         word 0   b00 b01 b02 ... b0(columns-1)
 *         word 1   a01 a11 a21 ...                    word 1   b10 b11 b12 ...
 *         ...                                         ...
 *
 *                                 columns: `registers` vector registers
 *                                 +---------------------------+
 *     for each word k             | b(k)                      |   loaded once
 *                                 +---------------------------+
 *              +------+           +---------------------------+
 *         rows | a(k) |  x        | block of C                |   stays in rows x registers vector registers
 *              +------+           +---------------------------+
 *              broadcast
 */

typedef uint32_t word;

#define PAGE_WORDS 64 /* depth in words that is packed at once: it fills the cache lines of a page */

INLINE int64_t size_of(int type) { return type == FP32 ? 4 : 2; }
INLINE int64_t in_word(int type) { return type == FP32 ? 1 : 2; }

/* Pack a sliver of rows that are stored along the depth, `row_stride` words apart. The sliver is `sliver_width` rows
 * wide; rows at and after index `rows` are zeros. */
INLINE void pack_along(const word *matrix, int64_t row_stride, int64_t rows, int64_t depth_words, int sliver_width,
                       word *sliver) {
    int64_t k = 0;
    for (; k + SQUARE <= depth_words; k += SQUARE)
        for (int i = 0; i < sliver_width; i += SQUARE)
            transpose_square(matrix + i * row_stride + k, row_stride, min64(rows, sliver_width) - i,
                             sliver + k * sliver_width + i, sliver_width);
    for (; k < depth_words; k++)
        for (int i = 0; i < sliver_width; i++)
            sliver[k * sliver_width + i] = i < rows ? matrix[i * row_stride + k] : 0;
}

/* Pack one word of each column of a sliver; columns at and after index `columns` are zeros. In bf16, `next_row` contains
 * the second elements of the words; it is NULL at the end of an odd depth. */
INLINE void pack_row(const void *row, const void *next_row, int64_t columns, int sliver_width, int type,
                     word *packed_row) {
    for (int i = 0; i < sliver_width; i++)
        if (i >= columns)
            packed_row[i] = 0;
        else
            packed_row[i] = type == FP32
                                ? ((const word *)row)[i]
                                : ((const bf16 *)row)[i] | (next_row ? (word)((const bf16 *)next_row)[i] << 16 : 0);
}

/* Do the same as `pack_row` for bf16 and a complete sliver; compilers do not vectorize `pack_row` this well. */
INLINE void interleave_rows(const bf16 *row, const bf16 *next_row, int sliver_width, word *packed_row) {
    int i = 0;
    for (; i + 8 <= sliver_width; i += 8) {
        __m256i even = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(row + i)));
        __m256i odd = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(next_row + i)));
        _mm256_storeu_si256((void *)(packed_row + i), _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
    }
    for (; i + 4 <= sliver_width; i += 4)
        _mm_storeu_si128((void *)(packed_row + i), _mm_unpacklo_epi16(_mm_loadl_epi64((const void *)(row + i)),
                                                                      _mm_loadl_epi64((const void *)(next_row + i))));
    for (; i < sliver_width; i++)
        packed_row[i] = row[i] | (word)next_row[i] << 16;
}

/* Pack slivers of columns with `depth` elements each, which are `row_stride` elements apart. */
INLINE void pack_across(const void *matrix, int64_t row_stride, int64_t columns, int64_t sliver_count, int64_t depth,
                        int sliver_width, int type, word *slivers) {
    const int64_t depth_words = ceil_div(depth, in_word(type)), row_bytes = row_stride * size_of(type);
    for (int64_t first_word = 0; first_word < depth_words; first_word += PAGE_WORDS)
        for (int64_t sliver = 0; sliver < sliver_count; sliver++)
            for (int64_t k = first_word; k < min64(depth_words, first_word + PAGE_WORDS); k++) {
                const char *row =
                    (const char *)matrix + k * in_word(type) * row_bytes + sliver * sliver_width * size_of(type);
                const char *next_row = type == BF16 && 2 * k + 1 == depth ? 0 : row + row_bytes;
                word *packed_row = slivers + (sliver * depth_words + k) * sliver_width;
                if (columns - sliver * sliver_width >= sliver_width && next_row) { /* true for nearly all slivers */
                    if (type == BF16)
                        interleave_rows((const bf16 *)row, (const bf16 *)next_row, sliver_width, packed_row);
                    else
                        pack_row(row, next_row, sliver_width, sliver_width, type, packed_row);
                } else
                    pack_row(row, next_row, columns - sliver * sliver_width, sliver_width, type, packed_row);
            }
}

INLINE vec add_product(vec sum, vec a, vec b, int type) {
#ifdef WITH_AMX /* such a compiler also supports AVX512-BF16 */
    if (type == BF16) {
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }
#endif
    return mul_add(a, b, sum);
}

/* Store elements at `offset`. In bf16, subnormal values become 0, as in the multiplications of AVX512-BF16. */
INLINE void store_element(void *elements, int64_t offset, lanes active, vec values, int type) {
#ifdef WITH_AMX
    if (type == BF16) {
        __m256i halves;
        __asm__("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(values));
        if (active == 0xffff)
            _mm256_storeu_si256((void *)((bf16 *)elements + offset), halves);
        else
            _mm256_mask_storeu_epi16((bf16 *)elements + offset, active, halves);
        return;
    }
#endif
    store(elements, offset, active, values, type);
}

/* Multiply a sliver of A by a sliver of B into a block of C of `rows` x (16 * `registers`) elements, see above. Words of
 * A are `a_stride` words apart, which is `rows` if A is packed. Rows of the block in `sums` are `sum_stride` elements
 * apart; the function adds to them unless `starts_at_zero`. For each word it prefetches a cache line from `prefetched`
 * into L2. */
INLINE void multiply_slivers(const word *a_sliver, int64_t a_stride, const word *b_sliver, int64_t depth_words,
                             float *sums, int64_t sum_stride, int starts_at_zero, const char *prefetched,
                             int64_t prefetch_step, int type, const int rows, const int registers) {
    const int columns = 16 * registers;
    vec block[12][3];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            block[i][j] = starts_at_zero ? zeros() : load_fp32(sums + i * sum_stride + 16 * j, 0xffff);
    for (int64_t k = 0; k < depth_words; k++, prefetched += prefetch_step) {
        vec b_registers[3];
        _mm_prefetch(prefetched, _MM_HINT_T1);
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            b_registers[j] = load_fp32((const float *)b_sliver + k * columns + 16 * j, 0xffff);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec a_value = broadcast(((const float *)a_sliver)[k * a_stride + i]);
#pragma GCC unroll 3
            for (int j = 0; j < registers; j++)
                block[i][j] = add_product(block[i][j], a_value, b_registers[j], type);
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 3
        for (int j = 0; j < registers; j++)
            store_fp32(sums + i * sum_stride + 16 * j, 0xffff, block[i][j]);
}
