// Scattered addition.
#include <algorithm>
#include <cstdio>

#include "daceopt/index_add.h"
#include "daceopt/scattering.h"

namespace daceopt {
namespace {

template <typename Index>
bool has_rows(const Index* index, int64_t count, int64_t rows) {
    for (int64_t i = 0; i < count; ++i) {
        if (index[i] >= -rows && index[i] < rows) continue;
        char message[96];
        std::snprintf(message, sizeof message, "index %lld at position %lld is outside of [-%lld, %lld)",
                      static_cast<long long>(index[i]), static_cast<long long>(i), static_cast<long long>(rows),
                      static_cast<long long>(rows));
        fail_index("IndexAdd", message);
        return false;
    }
    return true;
}

}  // namespace

template <typename Index, typename T>
void index_add(const Index* index, int64_t count, const T* y, T* w, int64_t rows, int64_t width) {
    if (!has_rows(index, count, rows)) return;
    const auto row_of = [=](int64_t i) { return index[i] < 0 ? int64_t(index[i]) + rows : int64_t(index[i]); };
    const auto clear = [=](int64_t first, int64_t last) { std::fill(w + first * width, w + last * width, T(0)); };
    scatter({rows, width, count}, y, w, row_of, clear, [](T a, T b) { return a + b; });
}

template void index_add(const int32_t*, int64_t, const float*, float*, int64_t, int64_t);
template void index_add(const int64_t*, int64_t, const float*, float*, int64_t, int64_t);
template void index_add(const int32_t*, int64_t, const double*, double*, int64_t, int64_t);
template void index_add(const int64_t*, int64_t, const double*, double*, int64_t, int64_t);

}  // namespace daceopt
