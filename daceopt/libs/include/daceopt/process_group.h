// Collective operations on the process groups of torch.distributed, started and waited for by generated code. Python is
// never called, and its lock never taken. A failure is an exception with a message; what was started settles first.
#pragma once
#include <cstdint>

namespace daceopt {

enum class Reduced { kFloat, kDouble, kHalf, kBfloat16 };

// Starts the sum of `count` elements over all ranks of the group, in place, and returns a handle. `data` belongs to the
// collective until it has been waited for.
int64_t all_reduce_start(const char* group, const char* label, void* data, int64_t count, Reduced type);
void all_reduce_wait(int64_t handle);

// All ranks tell all others which sequence of collectives they are about to start.
int64_t agreement_start(const char* group, int64_t sequence);
// Throws, with the first rank that is about to start another one.
void agreement_wait(int64_t handle, int64_t sequence);

}  // namespace daceopt
