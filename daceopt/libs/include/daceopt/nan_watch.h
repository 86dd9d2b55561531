// Looks for NaN in what was computed with short cuts. Compiled in libs/src/nan_watch.cpp.
#pragma once
#include <cstdint>

#include "daceopt/status.h"

namespace daceopt {

// Whether one of `count` numbers is NaN, which puts the run in doubt.
bool watch_for_nan(const float* x, int64_t count);

}  // namespace daceopt
