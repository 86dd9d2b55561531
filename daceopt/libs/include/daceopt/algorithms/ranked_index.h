// Where the element of a rank stands along an axis: of equal ones, the one that ATen finds. For medians that is the one
// that a stable sort puts there, for other ranks it depends on the steps of ATen's selection.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "daceopt/algorithms/arithmetic.h"
#include "daceopt/algorithms/ranks.h"

namespace daceopt {

namespace detail {

// Hoare's selection with the median of three as pivot, in the steps of torch.kthvalue (ATen/native/Sorting.cpp), on
// which it depends which of equal elements ends at `k`.
template <typename Word>
void select_kth(Word* words, int64_t extent, int64_t k) {
    const auto greater = [&](int64_t a, int64_t b) { return Ranked<Word>::less(words[b], words[a]); };
    const auto swap_if_greater = [&](int64_t a, int64_t b) {
        if (greater(a, b)) std::swap(words[a], words[b]);
    };
    int64_t low = 0, high = extent - 1;
    while (low < high) {
        if (high == low + 1) return swap_if_greater(low, high);
        std::swap(words[low + (high - low) / 2], words[low + 1]);
        swap_if_greater(low + 1, high);
        swap_if_greater(low, high);
        swap_if_greater(low + 1, low);
        int64_t i = low + 1, j = high;
        for (;;) {
            do ++i; while (greater(low, i));
            do --j; while (greater(j, low));
            if (j < i) break;
            std::swap(words[i], words[j]);
        }
        std::swap(words[low], words[j]);
        if (j <= k) low = i;
        if (j >= k) high = j - 1;
    }
}

}  // namespace detail

// What is looked for.
enum class Wanted : int64_t {
    kRank = 0,              // the element of a given rank from below; NaN is the largest (torch.kthvalue)
    kMedian = 1,            // the lower of those in the middle, or the first NaN (torch.median)
    kMedianWithoutNaN = 2,  // the same among those that are numbers (torch.nanmedian)
};

// indices[o, 0, i] is where what is wanted of x[o, :, i] stands.
// parameters: elements before, at and after the axis; what is wanted (Wanted); its rank, counted from 0.
template <typename T>
void ranked_index(const T* x, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2], rank = parameters[4];
    const Wanted wanted = Wanted(parameters[3]);
    if (rank < 0 || rank >= extent) return fail_index("kthvalue", "no element of that rank along the axis");
    for_each_line<T>(outer, extent, inner, [&](auto* words, int64_t o, int64_t i) {
        using Word = std::remove_pointer_t<decltype(words)>;
        using Of = Ranked<Word>;
        int64_t nans = 0, first = extent;
        for (int64_t n = 0; n < extent; ++n) {
            const T value = x[(o * extent + n) * inner + i];
            words[n] = Of::word(rank_of(value), n);
            if (value != value && nans++ == 0) first = n;
        }
        int64_t& found = indices[o * inner + i];
        if (wanted == Wanted::kRank) {
            detail::select_kth(words, extent, rank);
            found = Of::index(words[rank]);
        } else if (wanted == Wanted::kMedian && nans > 0) {
            found = first;
        } else {
            // ATen compares the indices of equal numbers, but not those of NaNs
            const bool numbers = nans < extent;
            const int64_t at = numbers ? (extent - nans - 1) / 2 : 0;
            const auto less = [&](Word a, Word b) { return numbers ? a < b : Of::less(a, b); };
            std::nth_element(words, words + at, words + extent, less);
            found = Of::index(words[at]);
        }
    });
}

}  // namespace daceopt
