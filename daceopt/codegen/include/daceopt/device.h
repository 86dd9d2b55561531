// A unit of its own, once in each program for a CUDA device: what its frame and its library calls need of the runtime.
#include <stdint.h>

#include <stdexcept>
#include <string>

// Where kernels report what they check: memory that devices write and the host reads without waiting for them.
extern "C" int32_t* daceopt_reports() {
  static int32_t* const place = [] {
    void* made = nullptr;
    if (cudaHostAlloc(&made, sizeof(int32_t), cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
      throw std::runtime_error("there is no memory for what kernels report");
    *static_cast<int32_t*>(made) = 0;
    return static_cast<int32_t*>(made);
  }();
  return place;
}

// Behind what runs on the stream already, before what comes.
extern "C" void daceopt_copy(void* stream, void* to, const void* from, int64_t bytes) {
  const cudaError_t error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) throw std::runtime_error(std::string("a copy did not start: ") + cudaGetErrorString(error));
}
