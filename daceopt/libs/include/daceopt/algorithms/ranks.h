// Ranks of elements, and words of a rank and an index.
#pragma once
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

namespace daceopt {

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

// A rank above an index: in the order of words, equal elements stand in that of their indices.
template <typename Word>
struct Ranked {
    static constexpr int kIndexBits = 4 * sizeof(Word);

    template <typename Rank>
    static Word word(Rank rank, int64_t index) {
        return Word(rank) << kIndexBits | Word(index);
    }
    static int64_t index(Word word) { return int64_t(word & ((Word(1) << kIndexBits) - 1)); }
    static bool less(Word a, Word b) { return (a >> kIndexBits) < (b >> kIndexBits); }
    static bool equal(Word a, Word b) { return (a >> kIndexBits) == (b >> kIndexBits); }
};

namespace detail {

template <typename Word, typename F>
void for_each_line(int64_t outer, int64_t extent, int64_t inner, F& f) {
#pragma omp parallel if (outer * inner > 1 && outer * extent * inner > 8192)
    {
        const std::unique_ptr<Word[]> words(new Word[extent]);
#pragma omp for collapse(2)
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) f(words.get(), o, i);
    }
}

}  // namespace detail

// Calls f(words, o, i) for each line x[o, :, i], in threads; it may write a word for each of the line's elements. Words are
// the smallest that hold rank and index.
template <typename T, typename F>
void for_each_line(int64_t outer, int64_t extent, int64_t inner, F&& f) {
    if constexpr (sizeof(T) <= 4) {
        if (extent <= INT64_C(0xFFFFFFFF)) return detail::for_each_line<uint64_t>(outer, extent, inner, f);
    }
    detail::for_each_line<unsigned __int128>(outer, extent, inner, f);
}

}  // namespace daceopt
