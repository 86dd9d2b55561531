// The dialect of CUDA kernels; scalar.h, then collectives.h follow it.
#ifndef DACEOPT_CUDA_H
#define DACEOPT_CUDA_H
#include <stdint.h>
#include <string.h>

#include <stdexcept>
#include <string>

#define DOP static __host__ __device__ __forceinline__  // the host computes the sizes of grids
#define DOP_INLINE __host__ __device__ inline
#define DOP_MEMBER DOP
#define DOP_DEVICE static __device__ __forceinline__

namespace dop {

DOP float exp(float x) { return ::expf(x); }
DOP double exp(double x) { return ::exp(x); }
template <class T> DOP T exp_rounded(T x) { return exp(x); }
template <class T> DOP T exp_weight(T x) { return exp(x); }  // subnormal numbers cost no time here
#define DOP_OVERLOADS(name)                            \
  DOP float name(float x) { return ::name##f(x); }     \
  DOP double name(double x) { return ::name(x); }
#define DOP_OVERLOADS_OF_TWO(name)                                        \
  DOP float name(float a, float b) { return ::name##f(a, b); }            \
  DOP double name(double a, double b) { return ::name(a, b); }
DOP_OVERLOADS(erf)
DOP_OVERLOADS(erfc)
DOP_OVERLOADS(exp2)
DOP_OVERLOADS(log2)
DOP_OVERLOADS(log10)
DOP_OVERLOADS_OF_TWO(fmod)
DOP_OVERLOADS_OF_TWO(atan2)
DOP_OVERLOADS_OF_TWO(hypot)
DOP_OVERLOADS_OF_TWO(nextafter)

// Starts `kernel` with one block for each iteration of its grid; without an iteration there is nothing to start.
template <class... Parameters, class... Arguments>
void launch(void* stream, int64_t blocks, unsigned threads, void (*kernel)(Parameters...), Arguments... arguments) {
  if (blocks <= 0) return;
  if (blocks > INT64_C(0x7FFFFFFF)) throw std::runtime_error("a grid of " + std::to_string(blocks) + " blocks; CUDA has 2147483647");
  cudaLaunchConfig_t shape = {};
  shape.gridDim = dim3(unsigned(blocks), 1, 1);
  shape.blockDim = dim3(threads, 1, 1);
  shape.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&shape, kernel, arguments...);
  if (error != cudaSuccess) throw std::runtime_error(std::string("a kernel did not start: ") + cudaGetErrorString(error));
}

// Neighbours that one thread has.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

DOP_DEVICE void store_words(void* to, uint32_t words) { __stwb(static_cast<unsigned*>(to), words); }
DOP_DEVICE void store_words(void* to, uint2 words) { __stwb(static_cast<uint2*>(to), words); }
DOP_DEVICE void store_words(void* to, uint4 words) { __stwb(static_cast<uint4*>(to), words); }
template <int BYTES>
struct Words;
template <>
struct Words<4> { using type = uint32_t; };
template <>
struct Words<8> { using type = uint2; };
template <>
struct Words<16> { using type = uint4; };

// ALIGN: what divides the address of the array, 16 or 1. Positions in it are multiples of N.
template <int ALIGN, int N, class T>
DOP_DEVICE Pack<T, N> load_pack(const T* from) {
  Pack<T, N> pack;
  if constexpr (ALIGN == 16) {
    pack = *reinterpret_cast<const Pack<T, N>*>(from);
  } else {
    for (int k = 0; k < N; ++k) pack.at[k] = from[k];
  }
  return pack;
}

// In one instruction: nvcc takes apart some stores of whole packs.
template <int ALIGN, class T, int N>
DOP_DEVICE void store_pack(T* to, const Pack<T, N>& pack) {
  if constexpr (ALIGN == 16) {
    typename Words<sizeof(T) * N>::type words;
    memcpy(&words, pack.at, sizeof words);
    store_words(to, words);
  } else {
    for (int k = 0; k < N; ++k) to[k] = pack.at[k];
  }
}

inline bool aligned() { return true; }
template <class... Pointers>
bool aligned(const void* first, Pointers... others) {
  return reinterpret_cast<uintptr_t>(first) % 16 == 0 && aligned(others...);
}

}  // namespace dop

#endif  // DACEOPT_CUDA_H
