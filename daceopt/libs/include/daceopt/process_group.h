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

// Starts the sum over all ranks of `data`, of world rows of `count` elements; each rank gets the row of its own number.
// `received`, of the same size, and `data` belong to the collective until it has been waited for, which writes `own`.
int64_t reduce_scatter_start(const char* group, const char* label, void* data, void* received, int64_t count, Reduced type);
void reduce_scatter_wait(int64_t handle, void* own);

// Starts to bring the `count` elements of `own` of all ranks together, as the rows of `gathered`, which belongs to the
// collective until it has been waited for; `own` does not.
int64_t all_gather_start(const char* group, const char* label, const void* own, void* gathered, int64_t count, Reduced type);
void all_gather_wait(int64_t handle);

// The run of `count` elements of `width` bytes that this rank has of the `total` elements of `data`; zeros behind them.
void own_shard(const char* group, const void* data, int64_t total, void* own, int64_t count, int64_t width);
// The elements of `data` as rows of `count`, which begin `stride` elements after each other; zeros behind the last.
void into_shards(const void* data, int64_t total, void* rows, int64_t world, int64_t stride, int64_t count, int64_t width);
// The other way round.
void unshard(const void* rows, int64_t stride, int64_t count, void* data, int64_t total, int64_t width);

// All ranks tell all others which sequence of collectives they are about to start.
int64_t agreement_start(const char* group, int64_t sequence);
// Throws, with the first rank that is about to start another one.
void agreement_wait(int64_t handle, int64_t sequence);

}  // namespace daceopt
