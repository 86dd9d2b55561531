// What OpenMP says of threads; its own header comes with some compilers only.
#ifndef DACEOPT_THREADS_H
#define DACEOPT_THREADS_H
extern "C" {
int omp_get_max_threads(void) noexcept;
int omp_get_num_threads(void) noexcept;
int omp_get_thread_num(void) noexcept;
void omp_set_num_threads(int) noexcept;
}
#endif
