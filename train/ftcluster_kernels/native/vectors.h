/* The types and functions that all loops in this folder share.
 *
 * ../../../hatch_build.py compiles the loops into two libraries, one for CPUs with AVX-512 (F, BW, DQ, VL) and one for
 * CPUs with AVX2. ../simd.py loads one of them. The modules that call a loop describe it. Elements are bf16 or fp32 in
 * memory and fp32 in registers. Results are rounded to the nearest value, as in torch. The loops call only functions of
 * the OpenMP library that torch has loaded, so they share torch's pool of threads and work with any C library.
 */

#include <immintrin.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;
typedef uint16_t lanes; /* a bit for each of the 16 elements of a `vec` */

/* The types of elements in memory; ../simd.py uses the same numbers. */
enum { BF16, FP32 };

#ifdef __AVX512F__
#include "avx512.h"
#else
#include "avx2.h"
#endif

/* The compiler supports AMX. CPUs with AMX also have AVX-512. See tiles.h. */
#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define WITH_AMX
#endif

/* A loop over the pieces from `begin` to `end`, in thread number `thread`. */
typedef void (*Loop)(const void *arguments, int64_t begin, int64_t end, int thread);

/* Give each thread an equal share of the first half. Threads then take parts of the second half until it is done, because
 * some cores are slower than others. */
void in_threads(int threads, Loop loop, const void *arguments, int64_t count);

/* Give each thread an equal share of the whole loop, for loops that return a result for each thread. */
void in_shares(int threads, Loop loop, const void *arguments, int64_t count);

/* Define name_loop, a Loop that calls `name` with a constant type; `name` is compiled for each type. */
#define LOOP_BY_TYPE(name, Arguments)                                                       \
    static void name##_loop(const void *pointer, int64_t begin, int64_t end, int thread) {  \
        const Arguments *arguments = pointer;                                               \
        if (arguments->type == FP32)                                                        \
            name(arguments, begin, end, thread, FP32);                                      \
        else                                                                                \
            name(arguments, begin, end, thread, BF16);                                      \
    }

INLINE int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t take_next(int64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

INLINE lanes first_lanes(int64_t count) { return count >= 16 ? 0xffff : (1u << count) - 1; }

/* Run the body for registers of 16 elements from `begin` to `end`: elements i to i + 15, of which the `active` lanes
 * exist. The body is compiled twice: for whole registers, where `active` is a constant, and for the rest. */
#define REGISTERS(i, active, begin, end, ...)            \
    do {                                                 \
        int64_t i = (begin);                             \
        for (; i + 16 <= (end); i += 16) {               \
            const lanes active = 0xffff;                 \
            __VA_ARGS__                                  \
        }                                                \
        if (i < (end)) {                                 \
            const lanes active = first_lanes((end) - i); \
            __VA_ARGS__                                  \
        }                                                \
    } while (0)

/* Load elements from `offset` on. */
INLINE vec load(const void *elements, int64_t offset, lanes active, int type) {
    return type == FP32 ? load_fp32((const float *)elements + offset, active)
                        : load_bf16((const bf16 *)elements + offset, active);
}

INLINE void store(void *elements, int64_t offset, lanes active, vec values, int type) {
    if (type == FP32)
        store_fp32((float *)elements + offset, active, values);
    else
        store_bf16((bf16 *)elements + offset, active, values);
}

/* Return 2^f for f from 0 to 1: the minimax polynomial, with a relative error of 8e-8. */
INLINE vec power_of_fraction(vec f) {
    vec y = broadcast(0.00187758f);
    y = mul_add(y, f, broadcast(0.00898934f));
    y = mul_add(y, f, broadcast(0.05582632f));
    y = mul_add(y, f, broadcast(0.24015361f));
    y = mul_add(y, f, broadcast(0.6931531f));
    return mul_add(y, f, broadcast(0.99999994f));
}

/* Return 2^x for x <= 0, and 0 below 2^-126. */
INLINE vec power_of_two(vec x) { return scaled(power_of_fraction(fraction(x)), x); }

/* Return e^x for x <= 0. In fp32, avoid the rounding of x / ln 2, whose error would be |x| times as large in the result. */
INLINE vec exponential(vec x, int type) {
    vec exponent = mul(x, broadcast(1.44269504f));
    if (type == BF16)
        return power_of_two(exponent);
    vec whole = round_down(exponent);
    vec f = mul_add(x, broadcast(1.44269504f), sub(zeros(), whole));
    return scaled(power_of_fraction(mul_add(x, broadcast(1.92596299e-8f), f)), whole);
}

/* Return the largest of `count` elements, in all lanes. */
INLINE vec largest_of(const void *elements, int64_t begin, int64_t count, int type) {
    vec largest = broadcast(-__builtin_inff());
    REGISTERS(i, active, 0, count, {
        largest = larger_active(active, largest, load(elements, begin + i, active, type));
    });
    return broadcast(largest_in(largest));
}
