// Rows of updates that go to rows of a result, at positions known at run time, by a team of threads. Each owns part of the
// result, so that what comes to one row comes in order, whatever the threads.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include <omp.h>

namespace daceopt {

struct Scattered {
    int64_t rows, width, count;  // of the result; of a row; of updates
};

namespace detail {

// Where the rows from `first` to `last` of the result get something, in order. Returns how many places that are; one more
// may be written to.
template <typename RowOf>
int64_t list_places(int64_t count, RowOf row_of, int64_t first, int64_t last, int32_t* places) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = row_of(i);
        places[found] = static_cast<int32_t>(i);
        found += row >= first && row < last;
    }
    return found;
}

// `size` numbers for the team of this thread, kept from call to call; null where there is no memory.
inline int32_t* lists_of(int64_t size) {
    thread_local std::unique_ptr<int32_t[]> kept;
    thread_local int64_t kept_size = 0;
    if (size > kept_size) {
        kept.reset(new (std::nothrow) int32_t[size]);
        kept_size = kept ? size : 0;
    }
    return kept.get();
}

template <typename T, typename Combine>
void combine_row(const T* from, T* to, int64_t count, Combine combine) {
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) to[j] = combine(to[j], from[j]);
}

// The same columns of all rows: whatever the positions are, threads have as much to do.
template <typename T, typename RowOf, typename Combine>
void combine_columns(const Scattered& s, const T* updates, T* out, RowOf row_of, Combine combine, int64_t first, int64_t last) {
    for (int64_t i = 0; i < s.count; ++i)
        combine_row(updates + i * s.width + first, out + row_of(i) * s.width + first, last - first, combine);
}

// Whole rows, of which the next ones are on their way already.
template <typename T, typename RowOf, typename Combine>
void combine_places(const Scattered& s, const T* updates, T* out, RowOf row_of, Combine combine, const int32_t* places, int64_t count) {
    constexpr int64_t kAhead = 6, kLine = 64 / sizeof(T), kLines = 64;
    const int64_t fetched = std::min(s.width, kLine * kLines);
    for (int64_t k = 0; k < count; ++k) {
        if (k + kAhead < count) {
            const int64_t next = places[k + kAhead];
            const T *from = updates + next * s.width, *to = out + row_of(next) * s.width;
            for (int64_t j = 0; j < fetched; j += kLine) __builtin_prefetch(from + j), __builtin_prefetch(to + j, 1);
        }
        combine_row(updates + places[k] * s.width, out + row_of(places[k]) * s.width, s.width, combine);
    }
}

}  // namespace detail

// begin(first, last) writes what stands in rows of `out` before; then out[row_of(i)] = combine(out[row_of(i)], updates[i]) for
// i = 0, 1, ... All rows lie inside.
template <typename T, typename RowOf, typename Begin, typename Combine>
void scatter(const Scattered& s, const T* updates, T* out, RowOf row_of, Begin begin, Combine combine) {
    constexpr int64_t kParallel = 16384;  // numbers
    constexpr int64_t kMinColumns = 64;   // per thread; narrower pieces of rows would share cache lines and waste vectors
    constexpr double kUneven = 1.25;      // times the share of a thread: columns, which are slower, balance any distribution
    if ((s.rows + s.count) * s.width <= kParallel || omp_get_max_threads() == 1) {
        begin(0, s.rows);
        return detail::combine_columns(s, updates, out, row_of, combine, 0, s.width);
    }
    const int64_t stride = s.count + 1;
    int32_t* const lists = s.count < INT32_MAX ? detail::lists_of(stride * omp_get_max_threads()) : nullptr;
    bool is_uneven = !lists;
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t first = s.rows * me / threads, last = s.rows * (me + 1) / threads;
        begin(first, last);
        int32_t* const own = lists ? lists + stride * me : nullptr;
        const int64_t found = lists ? detail::list_places(s.count, row_of, first, last, own) : 0;
        if (found * threads > kUneven * s.count && s.width >= kMinColumns * threads) {
#pragma omp atomic write
            is_uneven = true;
        }
#pragma omp barrier
        if (is_uneven)
            detail::combine_columns(s, updates, out, row_of, combine, s.width * me / threads, s.width * (me + 1) / threads);
        else
            detail::combine_places(s, updates, out, row_of, combine, own, found);
    }
}

}  // namespace daceopt
