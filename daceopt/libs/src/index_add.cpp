// Scattered addition. Each thread owns part of the result, so that the order of additions does not depend on the threads.
#include <algorithm>
#include <cstdio>

#include <omp.h>

#include "daceopt/index_add.h"

namespace daceopt {
namespace {

constexpr int64_t kParallelAdditions = 16384;
constexpr int64_t kMinColumns = 64;  // per thread; narrower pieces of rows would share cache lines and waste vectors

struct AddedBlock {  // of the result
    int64_t first_row, last_row, first_column, last_column;
};

// Wide rows are cut into columns, which balances any distribution of indices; narrow ones go to threads whole.
AddedBlock block_of(int64_t me, int64_t threads, int64_t rows, int64_t width) {
    if (width >= kMinColumns * threads) return {0, rows, width * me / threads, width * (me + 1) / threads};
    return {rows * me / threads, rows * (me + 1) / threads, 0, width};
}

template <typename Index, typename T>
void add_block(const Index* index, int64_t count, const T* y, T* w, int64_t rows, int64_t width, const AddedBlock& block) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = index[i] < 0 ? int64_t(index[i]) + rows : int64_t(index[i]);
        if (row < block.first_row || row >= block.last_row) continue;
        T* out = w + row * width;
        const T* in = y + i * width;
#pragma omp simd
        for (int64_t j = block.first_column; j < block.last_column; ++j) out[j] += in[j];
    }
}

template <typename Index>
void check(const Index* index, int64_t count, int64_t rows) {
    for (int64_t i = 0; i < count; ++i) {
        if (index[i] >= -rows && index[i] < rows) continue;
        char message[96];
        std::snprintf(message, sizeof message, "index %lld at position %lld is outside of [-%lld, %lld)",
                      static_cast<long long>(index[i]), static_cast<long long>(i), static_cast<long long>(rows),
                      static_cast<long long>(rows));
        return fail_index("IndexAdd", message);
    }
}

}  // namespace

template <typename Index, typename T>
void index_add(const Index* index, int64_t count, const T* y, T* w, int64_t rows, int64_t width) {
    check(index, count, rows);
#pragma omp parallel if ((rows + count) * width > kParallelAdditions)
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        std::fill(w + rows * me / threads * width, w + rows * (me + 1) / threads * width, T(0));
#pragma omp barrier
        add_block(index, count, y, w, rows, width, block_of(me, threads, rows, width));
    }
}

template void index_add(const int32_t*, int64_t, const float*, float*, int64_t, int64_t);
template void index_add(const int64_t*, int64_t, const float*, float*, int64_t, int64_t);
template void index_add(const int32_t*, int64_t, const double*, double*, int64_t, int64_t);
template void index_add(const int64_t*, int64_t, const double*, double*, int64_t, int64_t);

}  // namespace daceopt
