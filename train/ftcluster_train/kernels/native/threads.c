#include "vectors.h"

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
    int64_t count;
} Work;

static void share(void *pointer) {
    const Work *work = pointer;
    int64_t number = omp_thread_number(), threads = omp_threads();
    int64_t begin = work->count * number / threads, end = work->count * (number + 1) / threads;
    work->loop(work->arguments, begin, end, number);
}

void in_threads(int threads, Loop loop, const void *arguments, int64_t count) {
    Work work = {loop, arguments, count};
    if (threads > 1)
        gomp_parallel(share, &work, threads, 0);
    else
        loop(arguments, 0, count, 0);
}

