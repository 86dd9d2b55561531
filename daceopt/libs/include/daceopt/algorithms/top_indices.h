// The indices of the largest or smallest elements along an axis, in order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "daceopt/algorithms/arithmetic.h"
#include "daceopt/algorithms/ranks.h"

namespace daceopt {

namespace detail {

constexpr int64_t kFew = 32;    // that many are kept in order while all others pass by
constexpr int64_t kAtOnce = 16;  // compared with the last of them, as vectors

// The `k` smallest of `words` in order, into its first elements.
template <typename Word>
void smallest_first(Word* words, int64_t extent, int64_t k) {
    if (k > kFew || 4 * k > extent) {
        if (k < extent) std::nth_element(words, words + k, words + extent);
        std::sort(words, words + k);
        return;
    }
    std::sort(words, words + k);
    const auto insert = [&](Word word) {
        int64_t at = k - 1;
        for (; at > 0 && word < words[at - 1]; --at) words[at] = words[at - 1];
        words[at] = word;
    };
    for (int64_t first = k; first < extent; first += kAtOnce) {
        const int64_t end = std::min(first + kAtOnce, extent);
        const Word last = words[k - 1];
        bool any = false;
        for (int64_t n = first; n < end; ++n) any |= words[n] < last;
        for (int64_t n = first; any && n < end; ++n)
            if (words[n] < words[k - 1]) insert(words[n]);
    }
}

// The `k` smallest as torch.topk selects and orders them: by the steps of std::partial_sort and std::nth_element that
// only see ranks (ATen/native/TopKImpl.h), on which it depends which of equal elements are taken.
template <typename Word>
void as_aten(Word* words, int64_t extent, int64_t k, bool sorted) {
    const auto less = Ranked<Word>::less;
    if (k * 64 <= extent) return std::partial_sort(words, words + k, words + extent, less);
    std::nth_element(words, words + k - 1, words + extent, less);
    if (sorted) std::sort(words, words + k - 1, less);
}

}  // namespace detail

// Which elements are taken, and in what order.
enum class Ties : int64_t {
    kLowerIndexFirst = 0,
    kAten = 1,          // those and in the order that torch.topk gives
    kAtenUnsorted = 2,  // that of sorted=False
    kAtenSort = 3,      // all in the order that torch.sort gives
};

// indices[o, n, i] is where the n-th largest (smallest) of x[o, :, i] stands. NaN counts as the largest, as in PyTorch.
// parameters: elements before, at and after the axis; k; 1 for the largest; what decides among equals (Ties).
template <typename T>
void top_indices(const T* x, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2], k = parameters[3];
    const bool largest = parameters[4];
    const Ties ties = Ties(parameters[5]);
    if (k < 0 || k > extent) return fail_index("TopK", "k is larger than the extent of the axis");
    if (k == 0) return;
    for_each_line<T>(outer, extent, inner, [&](auto* words, int64_t o, int64_t i) {
        using Of = Ranked<std::remove_pointer_t<decltype(words)>>;
        const auto fill = [&] {
            for (int64_t n = 0; n < extent; ++n) {
                const auto rank = rank_of(x[(o * extent + n) * inner + i]);
                words[n] = Of::word(decltype(rank)(largest ? ~rank : rank), n);
            }
        };
        fill();
        if (ties == Ties::kAtenSort) {
            std::sort(words, words + extent, Of::less);
        } else if (ties == Ties::kAtenUnsorted) {
            detail::as_aten(words, extent, k, false);
        } else {
            // one more than wanted: without equals among these there is but one answer
            const int64_t looked = ties == Ties::kAten ? std::min(k + 1, extent) : k;
            detail::smallest_first(words, extent, looked);
            if (ties == Ties::kAten && std::adjacent_find(words, words + looked, Of::equal) != words + looked) {
                fill();
                detail::as_aten(words, extent, k, true);
            }
        }
        for (int64_t n = 0; n < k; ++n) indices[(o * k + n) * inner + i] = Of::index(words[n]);
    });
}

}  // namespace daceopt
