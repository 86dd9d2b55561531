// Rows scattered with addition. Compiled in libs/src/index_add.cpp.
#pragma once
#include <cstdint>

#include "daceopt/status.h"

namespace daceopt {

// w[rows, width] = 0; w[index[i]] += y[i] for i < count. Negative indices count from the end. Deterministic for any
// number of threads. An index outside of [-rows, rows) is reported to `status` and adds nothing.
template <typename Index, typename T>
void index_add(const Index* index, int64_t count, const T* y, T* w, int64_t rows, int64_t width);

}  // namespace daceopt
