// The indices of the largest or smallest elements along an axis, in order.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

namespace detail {

// A number that is larger for an element that comes later, and equal for equal ones: -0 is 0, NaN is the last.
template <typename T>
auto rank_of(T x) {
    using Rank = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;
    constexpr Rank kTop = Rank(1) << (8 * sizeof(Rank) - 1);
    if constexpr (std::is_floating_point_v<T>) {
        static_assert(sizeof(T) == sizeof(Rank));
        const T plain = x + T(0);
        Rank bits;
        std::memcpy(&bits, &plain, sizeof bits);
        return Rank(x != x ? ~Rank(0) : bits & kTop ? ~bits : bits | kTop);
    } else if constexpr (std::is_signed_v<T>) {
        return Rank(Rank(std::conditional_t<sizeof(T) <= 4, int32_t, int64_t>(x)) ^ kTop);
    } else {
        return Rank(x);
    }
}

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

// One word of rank and index for each element: their order is the wanted one, and no two are equal.
template <typename Word, typename T>
void top_indices_by(const T* x, int64_t* indices, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2], k = parameters[3];
    const bool largest = parameters[4];
    constexpr int kIndexBits = 4 * sizeof(Word);
#pragma omp parallel if (outer * inner > 1 && outer * extent * inner > 8192)
    {
        const std::unique_ptr<Word[]> words(new Word[extent]);
#pragma omp for collapse(2)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) {
                for (int64_t n = 0; n < extent; ++n) {
                    const auto rank = rank_of(x[(o * extent + n) * inner + i]);
                    words[n] = Word(decltype(rank)(largest ? ~rank : rank)) << kIndexBits | Word(n);
                }
                if (k > 0) smallest_first(words.get(), extent, k);
                for (int64_t n = 0; n < k; ++n)
                    indices[(o * k + n) * inner + i] = int64_t(words[n] & ((Word(1) << kIndexBits) - 1));
            }
    }
}

}  // namespace detail

// indices[o, n, i] is where the n-th largest (smallest) of x[o, :, i] stands; among equals the lower index comes first.
// parameters: elements before, at and after the axis; k; 1 for the largest. NaN counts as the largest, as in PyTorch.
template <typename T>
void top_indices(const T* x, int64_t* indices, const int64_t* parameters) {
    const int64_t extent = parameters[1], k = parameters[3];
    if (k < 0 || k > extent) return fail_index("TopK", "k is larger than the extent of the axis");
    if constexpr (sizeof(T) <= 4) {
        if (extent <= INT64_C(0xFFFFFFFF)) return detail::top_indices_by<uint64_t>(x, indices, parameters);
    }
    detail::top_indices_by<unsigned __int128>(x, indices, parameters);
}

}  // namespace daceopt
