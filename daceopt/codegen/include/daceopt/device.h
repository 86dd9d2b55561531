// A unit of its own, once in each program for a CUDA device: what its frame and its library calls need of the runtime.
#include <stdint.h>

#include <stdexcept>
#include <string>
#include <vector>

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

// ---------------------------------------------------------------- times between nodes, in runs that are timed

// Lets nothing on the stream begin before the host has given it all of a run: times are those of the device then, and
// not those of the calls that start its kernels. Not longer than `most` cycles, for a library may wait for the device.
static __global__ void daceopt_gate(const volatile int32_t* open, long long most) {
  const long long start = clock64();
  while (!*open && clock64() - start < most) {
  }
}

static void daceopt_clocked(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("a time was not taken: ") + cudaGetErrorString(error));
}

// What a run has recorded so far. Events belong to the device on which they were made, so each run makes its own.
struct DaceoptEvents {
  std::vector<cudaEvent_t> made;
  volatile int32_t* open = nullptr;

  void begin(cudaStream_t stream) {
    clear();
    if (!open) {
      void* place = nullptr;
      daceopt_clocked(cudaHostAlloc(&place, sizeof(int32_t), cudaHostAllocPortable | cudaHostAllocMapped));
      open = static_cast<volatile int32_t*>(place);
    }
    *open = 0;
    cudaLaunchConfig_t one = {};
    one.gridDim = one.blockDim = dim3(1, 1, 1);
    one.stream = stream;
    daceopt_clocked(cudaLaunchKernelEx(&one, daceopt_gate, static_cast<const volatile int32_t*>(open), 100000000LL));
  }

  void record(cudaStream_t stream) {
    cudaEvent_t event;
    daceopt_clocked(cudaEventCreate(&event));
    made.push_back(event);
    daceopt_clocked(cudaEventRecord(event, stream));
  }

  void clear() {
    for (cudaEvent_t event : made) cudaEventDestroy(event);
    made.clear();
  }
};

static DaceoptEvents& daceopt_events() {
  static thread_local DaceoptEvents events;
  return events;
}

// The time before node k, counted from 0; behind the last one k is their number.
extern "C" void daceopt_tick(void* stream, int64_t k) {
  DaceoptEvents& events = daceopt_events();
  if (k == 0) events.begin(static_cast<cudaStream_t>(stream));
  events.record(static_cast<cudaStream_t>(stream));
}

// Waits for the end of the run; `times` gets the nanoseconds of each time since the first.
extern "C" void daceopt_ticks(int64_t* times) {
  DaceoptEvents& events = daceopt_events();
  *events.open = 1;
  daceopt_clocked(cudaEventSynchronize(events.made.back()));
  times[0] = 0;
  for (size_t k = 1; k < events.made.size(); ++k) {
    float milliseconds = 0;
    daceopt_clocked(cudaEventElapsedTime(&milliseconds, events.made[k - 1], events.made[k]));
    times[k] = times[k - 1] + int64_t(double(milliseconds) * 1e6 + 0.5);
  }
  events.clear();
}

// ---------------------------------------------------------------- what control flow depends on

// An element for the host, which waits for it. What a kernel has reported by then ends the call: control flow that
// depends on what is wrong might not end.
extern "C" void daceopt_read(void* stream, void* to, const void* from, int64_t bytes) {
  if (daceopt_events().open) *daceopt_events().open = 1;  // else it would wait for itself
  const cudaStream_t own = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToHost, own);
  if (error == cudaSuccess) error = cudaStreamSynchronize(own);
  if (error != cudaSuccess) throw std::runtime_error(std::string("a number was not read: ") + cudaGetErrorString(error));
  if (*daceopt_reports()) throw std::runtime_error("a kernel has failed");
}
