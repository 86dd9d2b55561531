// The distinct slices along an axis.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// y: the distinct x[:, n, :], in lexicographic order or in that of their first occurrence; first: where each occurs
// first; inverse: which of y each slice of x is; counts: how often each occurs. Any output may be null. NaN equals NaN.
// parameters: elements before, at and after the axis; number of distinct slices; 1 for lexicographic order.
template <typename T, typename First, typename Inverse, typename Counts>
void unique(const T* x, T* y, First* first, Inverse* inverse, Counts* counts, const int64_t* parameters) {
    const int64_t outer = parameters[0], extent = parameters[1], inner = parameters[2];
    const bool sorted = parameters[4];
    const auto compare = [&](int64_t a, int64_t b) {
        for (int64_t o = 0; o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i) {
                const T left = x[(o * extent + a) * inner + i], right = x[(o * extent + b) * inner + i];
                if (before(left, right)) return -1;
                if (before(right, left)) return 1;
            }
        return 0;
    };
    std::vector<int64_t> order(extent);
    std::iota(order.begin(), order.end(), int64_t(0));
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });

    struct Group {
        int64_t leader, begin, end;  // first occurrence; range of `order`
    };
    std::vector<Group> groups;
    for (int64_t n = 0; n < extent; ++n) {
        if (n == 0 || compare(order[n - 1], order[n]) != 0) groups.push_back({order[n], n, n});
        groups.back().end = n + 1;
    }
    const int64_t count = parameters[3];
    if (!expect_count("Unique", int64_t(groups.size()), count)) return;
    if (!sorted)
        std::sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.leader < b.leader; });
    for (int64_t g = 0; g < count; ++g) {
        const Group& group = groups[g];
        if (first) first[g] = First(group.leader);
        if (counts) counts[g] = Counts(group.end - group.begin);
        for (int64_t n = group.begin; inverse && n < group.end; ++n) inverse[order[n]] = Inverse(g);
        for (int64_t o = 0; y && o < outer; ++o)
            for (int64_t i = 0; i < inner; ++i)
                y[(o * count + g) * inner + i] = x[(o * extent + group.leader) * inner + i];
    }
}

}  // namespace daceopt
