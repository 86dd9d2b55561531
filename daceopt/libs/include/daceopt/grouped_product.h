// Products of groups of rows, each with a matrix of its own: a library's product for each group.
#pragma once
#include <cstdio>

#include "daceopt/contraction.h"

namespace daceopt {

// Group g has the rows from ends[g - 1] (0 for the first) up to ends[g] of `all`, which is the product of all rows with
// the first group's matrix; those of further groups (of the factor b, or for sums over rows (`inner`) of the result) are
// `step` elements apart. Rows behind the last group become 0. Ends that decrease or exceed the rows are reported.
template <typename T, typename End>
void grouped_product(void (*multiply)(const Product<T>&), const End* ends, int64_t groups, int64_t step, bool inner,
                     const Product<T>& all) {
    const int64_t rows = inner ? all.k : all.m;
    const auto part = [&](int64_t first, int64_t last, int64_t group, bool is_zero) {
        Product<T> p = all;
        (inner ? p.k : p.m) = last - first;
        if (is_zero) p.k = 0;
        p.a.data += first * (inner ? p.a.col : p.a.row);
        p.b.data += inner ? first * p.b.row : group * step;
        p.y.data += inner ? group * step : first * p.y.row;
        multiply(p);
    };
    int64_t first = 0;
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t last = ends[g];
        if (last < first || last > rows) {
            char message[96];
            std::snprintf(message, sizeof message, "group %lld ends at row %lld; expected from %lld to %lld",
                          static_cast<long long>(g), static_cast<long long>(last), static_cast<long long>(first),
                          static_cast<long long>(rows));
            return fail("GroupedProduct", message);
        }
        if (inner || last > first) part(first, last, g, false);
        first = last;
    }
    if (!inner && first < rows) part(first, rows, 0, true);
}

}  // namespace daceopt
