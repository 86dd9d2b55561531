// Rows of updates that go to rows of a result, at positions known at run time, by a team of threads. Each owns part of the
// result, so that what comes to one row comes in order, whatever the threads.
#pragma once
#include <algorithm>
#include <cstdint>

#include "daceopt/threads.h"

namespace daceopt {

struct Scattered {
    int64_t rows, width, count;  // of the result; of a row; of updates
    bool in_place = false;       // whether all rows are there already
};

namespace detail {

constexpr int64_t kChunk = 4096;  // updates whose places a thread lists at once

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

// The rows from `first` to `last` of the result: the places that go there are listed, so that the next ones can be on their way.
template <typename T, typename RowOf, typename Combine>
void combine_rows(const Scattered& s, const T* updates, T* out, RowOf row_of, Combine combine, int64_t first, int64_t last) {
    constexpr int64_t kAhead = 6, kLine = 64 / sizeof(T), kLines = 64;
    const int64_t fetched = std::min(s.width, kLine * kLines);
    int64_t places[kChunk];
    for (int64_t start = 0; start < s.count; start += kChunk) {
        int64_t found = 0;
        for (int64_t i = start; i < std::min(start + kChunk, s.count); ++i) {
            const int64_t row = row_of(i);
            places[found] = i;
            found += row >= first && row < last;
        }
        for (int64_t k = 0; k < found; ++k) {
            if (k + kAhead < found) {
                const int64_t next = places[k + kAhead];
                const T *from = updates + next * s.width, *to = out + row_of(next) * s.width;
                for (int64_t j = 0; j < fetched; j += kLine) __builtin_prefetch(from + j), __builtin_prefetch(to + j, 1);
            }
            combine_row(updates + places[k] * s.width, out + row_of(places[k]) * s.width, s.width, combine);
        }
    }
}

template <typename RowOf>
int64_t places_between(int64_t count, RowOf row_of, int64_t first, int64_t last) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; ++i) found += row_of(i) >= first && row_of(i) < last;
    return found;
}

}  // namespace detail

// begin(first, last) writes what is in rows of `out` before, unless that is there already; then out[row_of(i)] = combine(out[row_of(i)], updates[i]) for
// i = 0, 1, ... All rows lie inside.
template <typename T, typename RowOf, typename Begin, typename Combine>
void scatter(const Scattered& s, const T* updates, T* out, RowOf row_of, Begin begin, Combine combine) {
    constexpr int64_t kParallel = 16384;  // numbers
    constexpr int64_t kMinColumns = 64;   // per thread; narrower pieces of rows would share cache lines and waste vectors
    constexpr double kUneven = 1.25;      // times the share of a thread: columns, which are slower, balance any distribution
    if (((s.in_place ? 0 : s.rows) + s.count) * s.width <= kParallel || omp_get_max_threads() == 1) {
        if (!s.in_place) begin(0, s.rows);
        return detail::combine_columns(s, updates, out, row_of, combine, 0, s.width);
    }
    bool is_uneven = false;
#pragma omp parallel
    {
        const int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        const int64_t first = s.rows * me / threads, last = s.rows * (me + 1) / threads;
        if (!s.in_place) begin(first, last);
        const bool is_wide = s.width >= kMinColumns * threads;
        if (is_wide && detail::places_between(s.count, row_of, first, last) * threads > kUneven * s.count) {
#pragma omp atomic write
            is_uneven = true;
        }
#pragma omp barrier
        if (is_uneven)
            detail::combine_columns(s, updates, out, row_of, combine, s.width * me / threads, s.width * (me + 1) / threads);
        else
            detail::combine_rows(s, updates, out, row_of, combine, first, last);
    }
}

}  // namespace daceopt
