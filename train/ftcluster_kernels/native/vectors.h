/* What the loops of this folder have in common.
 *
 * ../../../hatch_build.py compiles them into two libraries, for CPUs with AVX-512 (F, BW, DQ, VL) and
 * for those with AVX2, of which ../simd.py loads one; the modules that call a loop say what it does.
 * Numbers are bf16 or fp32 in memory and fp32 in between; results are rounded to the nearest, as torch
 * rounds. No function of a library is called but those of OpenMP that torch has loaded: so there is
 * one pool of threads, and the files work with any C library.
 */

#include <immintrin.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t bf16;
typedef uint16_t lanes; /* a bit for each of the 16 numbers of a `vec` */

/* The types of numbers in memory; ../simd.py has the same. */
enum { BF16, FP32 };

#ifdef __AVX512F__
#include "avx512.h"
#else
#include "avx2.h"
#endif

/* The compiler knows AMX; CPUs that have it have AVX-512. See tiles.h. */
#if defined(__AVX512F__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define WITH_AMX
#endif

/* Of `count` pieces those from `begin` on, by thread number `thread`. */
typedef void (*Loop)(const void *arguments, int64_t begin, int64_t end, int thread);

/* Each thread takes an equal share of one half, and then parts of the other half as long as there are any: some
 * cores are slower than others. */
void in_threads(int threads, Loop loop, const void *arguments, int64_t count);

/* Each thread takes an equal share of the whole, for what depends on it. */
void in_shares(int threads, Loop loop, const void *arguments, int64_t count);

/* Defines name_loop, a Loop that calls `name` with a constant type, which is compiled for each. */
#define LOOP_BY_TYPE(name, Arguments)                                                       \
    static void name##_loop(const void *pointer, int64_t begin, int64_t end, int thread) {  \
        const Arguments *arguments = pointer;                                               \
        if (arguments->type == FP32)                                                        \
            name(arguments, begin, end, thread, FP32);                                      \
        else                                                                                \
            name(arguments, begin, end, thread, BF16);                                      \
    }

INLINE int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t next_of(int64_t *counter) { return __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

INLINE lanes first(int64_t left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

/* Computes with numbers i to i + 15, of which there are `some`, and with the next ones, from `begin` to
 * `end`. The body is compiled twice: for whole registers, where `some` is a constant, and for the rest. */
#define REGISTERS(i, some, begin, end, ...)      \
    do {                                         \
        int64_t i = (begin);                     \
        for (; i + 16 <= (end); i += 16) {       \
            const lanes some = 0xffff;           \
            __VA_ARGS__                          \
        }                                        \
        if (i < (end)) {                         \
            const lanes some = first((end) - i); \
            __VA_ARGS__                          \
        }                                        \
    } while (0)

/* Numbers from `place` on. */
INLINE vec load(const void *numbers, int64_t place, lanes some, int type) {
    return type == FP32 ? load_fp32((const float *)numbers + place, some)
                        : load_bf16((const bf16 *)numbers + place, some);
}

INLINE void store(void *numbers, int64_t place, lanes some, vec values, int type) {
    if (type == FP32)
        store_fp32((float *)numbers + place, some, values);
    else
        store_bf16((bf16 *)numbers + place, some, values);
}

/* 2^f for f from 0 to 1: a polynomial, fitted for the smallest largest relative error, 8e-8. */
INLINE vec power_of_fraction(vec f) {
    vec y = all(0.00187758f);
    y = mul_add(y, f, all(0.00898934f));
    y = mul_add(y, f, all(0.05582632f));
    y = mul_add(y, f, all(0.24015361f));
    y = mul_add(y, f, all(0.6931531f));
    return mul_add(y, f, all(0.99999994f));
}

/* 2^x for x <= 0, and 0 below 2^-126. */
INLINE vec power_of_two(vec x) { return scaled(power_of_fraction(fraction(x)), x); }

/* e^x for x <= 0. In fp32 without the rounding of x / ln 2, which is |x| times as large in the result. */
INLINE vec exponential(vec x, int type) {
    vec exponent = mul(x, all(1.44269504f));
    if (type == BF16)
        return power_of_two(exponent);
    vec whole = round_down(exponent);
    vec f = mul_add(x, all(1.44269504f), sub(zeros(), whole));
    return scaled(power_of_fraction(mul_add(x, all(1.92596299e-8f), f)), whole);
}

/* in all lanes */
INLINE vec largest_of(const void *numbers, int64_t begin, int64_t count, int type) {
    vec largest = all(-__builtin_inff());
    REGISTERS(i, some, 0, count, {
        largest = larger_some(some, largest, load(numbers, begin + i, some, type));
    });
    return all(largest_in(largest));
}
