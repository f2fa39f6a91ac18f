#include "vectors.h"

/* The number of parts into which the second half of a loop is divided; each free thread takes the next part. With more
 * parts, threads would contend for the counter. */
#define REST_PARTS(threads) (2 * (threads) + 12)

static void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
static int (*omp_thread_number)(void), (*omp_threads)(void);

EXPORT void use_openmp(void *parallel, void *thread_number, void *threads) {
    gomp_parallel = parallel;
    omp_thread_number = thread_number;
    omp_threads = threads;
}

typedef struct {
    Loop loop;
    const void *arguments;
    int64_t count, next;
} Work;

static void share(void *pointer) {
    const Work *work = pointer;
    int64_t number = omp_thread_number(), threads = omp_threads();
    int64_t begin = work->count * number / threads, end = work->count * (number + 1) / threads;
    work->loop(work->arguments, begin, end, number);
}

static void share_half(void *pointer) {
    Work *work = pointer;
    int64_t number = omp_thread_number(), threads = omp_threads(), rest_parts = REST_PARTS(threads);
    int64_t half = work->count / 2, rest = work->count - half;
    work->loop(work->arguments, half * number / threads, half * (number + 1) / threads, number);
    for (int64_t part; (part = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < rest_parts;)
        work->loop(work->arguments, half + rest * part / rest_parts, half + rest * (part + 1) / rest_parts, number);
}

static void run(void (*shares)(void *), int threads, Loop loop, const void *arguments, int64_t count) {
    Work work = {loop, arguments, count, 0};
    if (threads > 1)
        gomp_parallel(shares, &work, threads, 0);
    else
        loop(arguments, 0, count, 0);
}

void in_shares(int threads, Loop loop, const void *arguments, int64_t count) {
    run(share, threads, loop, arguments, count);
}

void in_threads(int threads, Loop loop, const void *arguments, int64_t count) {
    run(share_half, threads, loop, arguments, count);
}
