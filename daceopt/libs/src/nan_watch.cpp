// A pass over what has been computed.
#include "daceopt/nan_watch.h"

namespace daceopt {

bool watch_for_nan(const float* x, int64_t count) {
    constexpr int64_t kParallel = 16384;
    int found = 0;
#pragma omp parallel for simd schedule(static) reduction(| : found) if (count >= kParallel)
    for (int64_t i = 0; i < count; ++i) found |= x[i] != x[i];
    status.doubt |= found != 0;
    return found != 0;
}

}  // namespace daceopt
