// What emulation.h declares: turns of the threads, and the events of CUDA's runtime.
#include "emulation.h"

#include <chrono>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>

// Kernels have run when what starts them returns, so an event happens as it is recorded.
struct EmulatedEvent {
  bool is_recorded = false;
  std::chrono::steady_clock::time_point at;
};
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->is_recorded = true;
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->is_recorded ? cudaSuccess : cudaErrorLaunchFailure;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  if (!first->is_recorded || !last->is_recorded) return cudaErrorLaunchFailure;
  *milliseconds = std::chrono::duration<float, std::milli>(last->at - first->at).count();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

emulation::Index blockIdx;

namespace emulation {

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  Wait wait = RUNNING;
  const char* operation = "";
  unsigned long long slot = 0;
};

unsigned running = 0;
static std::vector<Thread> threads;
static ucontext_t scheduler;
static void (*body)(void*) = nullptr;
static void* body_arguments = nullptr;
static std::string error;
static int order = 0;
static bool quiet = false;  // errors are asked for, and no launch fails
static void* stream = nullptr;  // of the last launch

void pause(Wait wait, const char* operation) {
  Thread& self = threads[running];
  self.wait = wait;
  self.operation = operation;
  swapcontext(&self.context, &scheduler);
}

static void start() {
  body(body_arguments);
  pause(DONE, "");
}

// Those of [begin, end) go on if all of them wait for the same; false: they cannot yet.
static bool release(size_t begin, size_t end, Wait wait) {
  for (size_t k = begin; k < end; ++k)
    if (threads[k].wait != wait || std::strcmp(threads[k].operation, threads[begin].operation)) return false;
  for (size_t k = begin; k < end; ++k) threads[k].wait = RUNNING;
  return true;
}

static bool finished() {
  return std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.wait == DONE; });
}

static void run_block(const std::vector<unsigned>& turns) {
  for (unsigned k = 0; k < threads.size(); ++k) {
    Thread& t = threads[k];
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
      running = k;
      swapcontext(&scheduler, &threads[k].context);
    }
    for (size_t w = 0; w < threads.size(); w += 32) moved |= release(w, std::min(w + 32, threads.size()), AT_WARP);
    moved |= release(0, threads.size(), AT_BLOCK);
    if (!moved) {
      error = "threads wait for others that do not come:";
      for (size_t k = 0; k < threads.size(); k += 32)
        error += " " + std::to_string(k) + ":" + (threads[k].wait == DONE ? "ended" : threads[k].operation);
      return;
    }
  }
}

unsigned long long exchange(unsigned mask, unsigned long long value, int lane, const char* operation) {
  if (mask != 0xFFFFFFFFu) error = "a mask that is not whole";
  const unsigned self = running;
  threads[self].slot = value;
  pause(AT_WARP, operation);
  const unsigned long long other = threads[self ^ unsigned(lane)].slot;
  pause(AT_WARP, "end of exchange");
  return other;
}

cudaError_t launch(const cudaLaunchConfig_t& shape, void (*kernel)(void*), void* arguments) {
  if (!quiet) error.clear();
  stream = shape.stream;
  body = kernel;
  body_arguments = arguments;
  if (threads.size() != shape.blockDim.x) threads = std::vector<Thread>(shape.blockDim.x);  // stacks of 64 KiB each
  std::vector<unsigned> turns(shape.blockDim.x);
  std::iota(turns.begin(), turns.end(), 0u);
  if (order == 1) std::reverse(turns.begin(), turns.end());
  std::mt19937 random(order);
  for (unsigned k = 0; k < shape.gridDim.x && error.empty(); ++k) {
    if (order > 1) std::shuffle(turns.begin(), turns.end(), random);
    blockIdx.x = order == 1 ? shape.gridDim.x - 1 - k : k;
    run_block(turns);
  }
  return error.empty() || quiet ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace emulation

const char* cudaGetErrorString(cudaError_t) { return emulation::error.c_str(); }

extern "C" {
void emulation_start(int order) {
  emulation::order = order;
  emulation::quiet = true;
  emulation::error.clear();
}
const char* emulation_error() { return emulation::error.c_str(); }
void* emulation_stream() { return emulation::stream; }
}
