// The dialect of CUDA kernels; scalar.h, then collectives.h follow it.
#ifndef DACEOPT_CUDA_H
#define DACEOPT_CUDA_H
#include <stdint.h>

#include <stdexcept>
#include <string>

#define DOP static __host__ __device__ __forceinline__  // the host computes the sizes of grids
#define DOP_INLINE __host__ __device__ inline
#define DOP_MEMBER DOP
#define DOP_DEVICE static __device__ __forceinline__

namespace dop {

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

}  // namespace dop

#endif  // DACEOPT_CUDA_H
