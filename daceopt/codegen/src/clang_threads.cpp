// What clang makes of OpenMP's loops calls a runtime of its own; here on libgomp, whose threads are those of PyTorch. Two
// runtimes would have two sets of threads, which wait for each other's cores.
// Schedules are static; tasks and what else generated code does not use are missing.
#include <stdarg.h>
#include <stdint.h>

#include "daceopt/threads.h"

extern "C" {
void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned flags);
void GOMP_parallel_start(void (*function)(void*), void* data, unsigned threads);
void GOMP_parallel_end();
void GOMP_barrier();
void GOMP_critical_start();
void GOMP_critical_end();
}

namespace {

constexpr int kMost = 256;
constexpr int32_t kChunked = 33;  // as clang numbers schedules; 34 is the one without chunks
constexpr int32_t kModifiers = 3 << 29;

thread_local unsigned next_threads = 0;  // of the region that starts next; 0: as many as usual

// A function with these arguments, and more of which it knows nothing: a caller's registers and stack hold what a callee
// takes, whatever else is there.
struct Region {
  void* function;
  void* arguments[kMost];
  int count;
};

#define DOP_4(a, k) a[k], a[k + 1], a[k + 2], a[k + 3]
#define DOP_16(a, k) DOP_4(a, k), DOP_4(a, k + 4), DOP_4(a, k + 8), DOP_4(a, k + 12)
#define DOP_64(a, k) DOP_16(a, k), DOP_16(a, k + 16), DOP_16(a, k + 32), DOP_16(a, k + 48)

void run(void* data) {
  auto& region = *static_cast<Region*>(data);
  auto* function = reinterpret_cast<void (*)(int32_t*, int32_t*, ...)>(region.function);
  void** a = region.arguments;
  int32_t thread = omp_get_thread_num(), none = 0;
  if (region.count <= 16) return function(&thread, &none, DOP_16(a, 0));
  if (region.count <= 64) return function(&thread, &none, DOP_64(a, 0));
  function(&thread, &none, DOP_64(a, 0), DOP_64(a, 64), DOP_64(a, 128), DOP_64(a, 192));
}

// The part of this thread of iterations from lower to upper, both included.
template <class T, class Step>
void share(int32_t schedule, int32_t* last, T* lower, T* upper, Step* stride, Step step, Step chunk) {
  const uint64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
  *last = 0;
  if (step > 0 ? *upper < *lower : *lower < *upper) {
    *stride = step;
    return;
  }
  const uint64_t size = step > 0 ? step : -uint64_t(step);
  const uint64_t count = (step > 0 ? uint64_t(*upper) - uint64_t(*lower) : uint64_t(*lower) - uint64_t(*upper)) / size + 1;
  if ((schedule & ~kModifiers) == kChunked) {
    const uint64_t each = chunk > 0 ? chunk : 1;
    *lower = T(*lower + T(each * me * uint64_t(step)));
    *upper = T(*lower + T((each - 1) * uint64_t(step)));
    *stride = Step(each * threads * uint64_t(step));
    *last = (count - 1) / each % threads == me;
    return;
  }
  const uint64_t each = count / threads, more = count % threads;
  const uint64_t first = me * each + (me < more ? me : more), own = each + (me < more);
  *lower = T(*lower + T(first * uint64_t(step)));
  *upper = T(*lower + T((own - 1) * uint64_t(step)));
  *stride = Step(count * uint64_t(step));
  *last = own && first + own == count;
}

}  // namespace

extern "C" {

int32_t __kmpc_global_thread_num(void*) { return omp_get_thread_num(); }

void __kmpc_push_num_threads(void*, int32_t, int32_t threads) { next_threads = threads; }

void __kmpc_fork_call(void*, int32_t count, void* function, ...) {
  if (count > kMost) __builtin_trap();
  Region region;
  region.function = function;
  region.count = count;
  va_list arguments;
  va_start(arguments, function);
  for (int k = 0; k < count; ++k) region.arguments[k] = va_arg(arguments, void*);
  va_end(arguments);
  const unsigned threads = next_threads;
  next_threads = 0;
  GOMP_parallel(run, &region, threads, 0);
}

void __kmpc_serialized_parallel(void*, int32_t) { GOMP_parallel_start(nullptr, nullptr, 1); }
void __kmpc_end_serialized_parallel(void*, int32_t) {
  GOMP_parallel_end();
  next_threads = 0;
}

void __kmpc_for_static_init_4(void*, int32_t, int32_t schedule, int32_t* last, int32_t* lower, int32_t* upper,
                              int32_t* stride, int32_t step, int32_t chunk) {
  share(schedule, last, lower, upper, stride, step, chunk);
}
void __kmpc_for_static_init_4u(void*, int32_t, int32_t schedule, int32_t* last, uint32_t* lower, uint32_t* upper,
                               int32_t* stride, int32_t step, int32_t chunk) {
  share(schedule, last, lower, upper, stride, step, chunk);
}
void __kmpc_for_static_init_8(void*, int32_t, int32_t schedule, int32_t* last, int64_t* lower, int64_t* upper,
                              int64_t* stride, int64_t step, int64_t chunk) {
  share(schedule, last, lower, upper, stride, step, chunk);
}
void __kmpc_for_static_init_8u(void*, int32_t, int32_t schedule, int32_t* last, uint64_t* lower, uint64_t* upper,
                               int64_t* stride, int64_t step, int64_t chunk) {
  share(schedule, last, lower, upper, stride, step, chunk);
}
void __kmpc_for_static_fini(void*, int32_t) {}

void __kmpc_barrier(void*, int32_t) { GOMP_barrier(); }

// Threads add to the shared result one after the other.
int32_t __kmpc_reduce_nowait(void*, int32_t, int32_t, uint64_t, void*, void (*)(void*, void*), void*) {
  GOMP_critical_start();
  return 1;
}
void __kmpc_end_reduce_nowait(void*, int32_t, void*) { GOMP_critical_end(); }
int32_t __kmpc_reduce(void*, int32_t, int32_t, uint64_t, void*, void (*)(void*, void*), void*) {
  GOMP_critical_start();
  return 1;
}
void __kmpc_end_reduce(void*, int32_t, void*) {
  GOMP_critical_end();
  GOMP_barrier();
}
}
