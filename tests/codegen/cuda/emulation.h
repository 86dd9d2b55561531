// What CUDA C++ of generated kernels means, on the host: every thread of a block is a coroutine that runs until it meets
// others. Blocks run one after another. A block or a warp whose threads do not all come to where some of them wait, or
// meet at different operations, is an error, as is a lane that exchanges values with one that has ended.
//
// Between two meetings threads run one after another, in an order that `emulation_order` sets (0: ascending,
// 1: descending, else: shuffled by it): what lacks a barrier gives another result in one of them.
//
// What is the same for all kernels is in emulation.cpp, compiled once and linked into each library.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>  // kernels include these, too: they are read once
#include <string>
#include <type_traits>

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

struct EmulatedEvent;
using cudaEvent_t = EmulatedEvent*;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last);
cudaError_t cudaEventDestroy(cudaEvent_t event);
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
extern unsigned running;  // the thread of the block whose turn it is
void pause(Wait wait, const char* operation);
unsigned long long exchange(unsigned mask, unsigned long long value, int lane, const char* operation);
cudaError_t launch(const cudaLaunchConfig_t& shape, void (*body)(void*), void* arguments);

struct Index {
  unsigned x = 0;
};
struct ThreadIndex {
  struct X {
    operator unsigned() const { return running; }
  } x;
};

}  // namespace emulation

extern emulation::Index blockIdx;
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
const char* cudaGetErrorString(cudaError_t);

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* shape, void (*kernel)(Parameters...), Arguments... arguments) {
  auto body = [=] { kernel(Parameters(arguments)...); };
  return emulation::launch(*shape, [](void* of) { (*static_cast<decltype(body)*>(of))(); }, &body);
}
