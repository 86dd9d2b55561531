// What CUDA C++ of generated kernels means, on the host: every thread of a block is a coroutine that runs until it meets
// others. Blocks run one after another. A block or a warp whose threads do not all come to where some of them wait, or
// meet at different operations, is an error, as is a lane that exchanges values with one that has ended.
//
// Between two meetings threads run one after another, in an order that `emulation_order` sets (0: ascending,
// 1: descending, else: shuffled by it): what lacks a barrier gives another result in one of them.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <ucontext.h>
#include <vector>
#include <algorithm>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
template <class Words>
void __stwb(Words* to, Words words) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(Words)) std::abort();  // as a device does
  std::memcpy(to, &words, sizeof words);
}
using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorLaunchFailure = 719 };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
inline cudaError_t cudaHostAlloc(void** place, size_t size, unsigned) {
  *place = std::malloc(size);
  return *place ? cudaSuccess : cudaErrorLaunchFailure;
}
enum { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, int, cudaStream_t) {
  std::memcpy(to, from, size);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

// Kernels have run when what starts them returns, so an event happens as it is recorded.
struct EmulatedEvent {
  bool is_recorded = false;
  std::chrono::steady_clock::time_point at;
};
using cudaEvent_t = EmulatedEvent*;
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->is_recorded = true;
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->is_recorded ? cudaSuccess : cudaErrorLaunchFailure;
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  if (!first->is_recorded || !last->is_recorded) return cudaErrorLaunchFailure;
  *milliseconds = std::chrono::duration<float, std::milli>(last->at - first->at).count();
  return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
// What waits for the host waits in vain here: its time is over at once.
inline long long clock64() {
  static long long now = 0;
  return now += 1LL << 40;
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulation {

enum Wait { RUNNING, AT_BLOCK, AT_WARP, DONE };
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  Wait wait = RUNNING;
  const char* operation = "";
  unsigned long long slot = 0;
  unsigned number = 0;
};

inline std::vector<Thread> threads;
inline Thread* current = nullptr;
inline ucontext_t scheduler;
inline std::function<void()> body;
inline std::string error;
inline int order = 0;
inline bool quiet = false;  // errors are asked for, and no launch fails
inline void* stream = nullptr;  // of the last launch

inline void pause(Wait wait, const char* operation) {
  Thread* self = current;
  self->wait = wait;
  self->operation = operation;
  swapcontext(&self->context, &scheduler);
}

inline void start() {
  body();
  current->wait = DONE;
  swapcontext(&current->context, &scheduler);
}

// Those of [begin, end) go on if all of them wait for the same; false: they cannot yet.
inline bool release(size_t begin, size_t end, Wait wait) {
  for (size_t k = begin; k < end; ++k)
    if (threads[k].wait != wait || std::strcmp(threads[k].operation, threads[begin].operation)) return false;
  for (size_t k = begin; k < end; ++k) threads[k].wait = RUNNING;
  return true;
}

inline bool finished() {
  return std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.wait == DONE; });
}

inline void run_block(const std::vector<unsigned>& turns) {
  for (unsigned k = 0; k < threads.size(); ++k) {
    Thread& t = threads[k];
    t.number = k;
    t.wait = RUNNING;
    t.stack.resize(1 << 16);
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    makecontext(&t.context, start, 0);
  }
  while (!finished()) {
    bool moved = false;
    for (unsigned k : turns) {
      if (threads[k].wait != RUNNING) continue;
      moved = true;
      current = &threads[k];
      swapcontext(&scheduler, &threads[k].context);
    }
    for (size_t w = 0; w < threads.size(); w += 32) moved |= release(w, std::min(w + 32, threads.size()), AT_WARP);
    moved |= release(0, threads.size(), AT_BLOCK);
    if (!moved) {
      error = "threads wait for others that do not come:";
      for (const Thread& t : threads)
        if (t.number % 32 == 0) error += " " + std::to_string(t.number) + (t.wait == DONE ? ":ended" : std::string(":") + t.operation);
      return;
    }
  }
}

inline unsigned long long exchange(unsigned mask, unsigned long long value, int lane, const char* operation) {
  if (mask != 0xFFFFFFFFu) error = "a mask that is not whole";
  Thread* self = current;
  self->slot = value;
  pause(AT_WARP, operation);
  const unsigned long long other = threads[self->number ^ unsigned(lane)].slot;
  pause(AT_WARP, "end of exchange");
  return other;
}

struct Index {
  unsigned x = 0;
};
struct ThreadIndex {
  struct X {
    operator unsigned() const { return current->number; }
  } x;
};

}  // namespace emulation

inline emulation::Index blockIdx;
inline emulation::ThreadIndex threadIdx;

#define __syncthreads() emulation::pause(emulation::AT_BLOCK, "block")
#define __syncwarp() emulation::pause(emulation::AT_WARP, "warp")
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int lane) {
  return unsigned(emulation::exchange(mask, value, lane, "exchange of 4 bytes"));
}
inline unsigned long long __shfl_xor_sync(unsigned mask, unsigned long long value, int lane) {
  return emulation::exchange(mask, value, lane, "exchange of 8 bytes");
}
inline int atomicCAS(int* address, int compare, int value) {
  const int old = *address;
  if (old == compare) *address = value;
  return old;
}
inline const char* cudaGetErrorString(cudaError_t) { return emulation::error.c_str(); }

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* shape, void (*kernel)(Parameters...), Arguments... arguments) {
  using namespace emulation;
  if (!quiet) error.clear();
  stream = shape->stream;
  body = [=] { kernel(Parameters(arguments)...); };
  threads = std::vector<Thread>(shape->blockDim.x);
  std::vector<unsigned> turns(shape->blockDim.x);
  std::iota(turns.begin(), turns.end(), 0u);
  if (order == 1) std::reverse(turns.begin(), turns.end());
  std::mt19937 random(order);
  for (unsigned k = 0; k < shape->gridDim.x && error.empty(); ++k) {
    if (order > 1) std::shuffle(turns.begin(), turns.end(), random);
    blockIdx.x = order == 1 ? shape->gridDim.x - 1 - k : k;
    run_block(turns);
  }
  return error.empty() || quiet ? cudaSuccess : cudaErrorLaunchFailure;
}

#define EMULATION extern "C" __attribute__((visibility("default"), used)) inline
EMULATION void emulation_start(int order) {
  emulation::order = order;
  emulation::quiet = true;
  emulation::error.clear();
}
EMULATION const char* emulation_error() { return emulation::error.c_str(); }
EMULATION void* emulation_stream() { return emulation::stream; }
