// Boxes chosen by score, without those that overlap a better one of their class.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "daceopt/algorithms/arithmetic.h"

namespace daceopt {

// Corners of a box in order; sides of either sign.
template <typename T>
struct Box {
    T top, left, bottom, right;

    // [y1, x1, y2, x2] of any two opposite corners, or [x, y, width, height] around the centre.
    static Box of(const T* b, bool centre) {
        if (centre) return {b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2};
        return {std::min(b[0], b[2]), std::min(b[1], b[3]), std::max(b[0], b[2]), std::max(b[1], b[3])};
    }
    T area() const { return (bottom - top) * (right - left); }
};

// Intersection over union; 0 where a box is empty.
template <typename T>
T overlap(const Box<T>& a, const Box<T>& b) {
    const T height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
    const T width = std::min(a.right, b.right) - std::max(a.left, b.left);
    if (!(height > 0 && width > 0 && a.area() > 0 && b.area() > 0)) return T(0);
    const T shared = height * width;
    const T together = a.area() + b.area() - shared;
    return together > 0 ? shared / together : T(0);
}

// boxes[batches, count, 4], scores[batches, classes, count]; selected[n] = (batch, class, box), best first in its class.
// limit: boxes kept per class (default none at all), worst: the overlap from which on a box goes (default 0), least: the
// score that must be exceeded (default: any). parameters: batches; classes; boxes; boxes kept in all; 1 for centres.
template <typename T, typename Limit, typename Worst, typename Least>
void non_max_suppression(const T* boxes, const T* scores, const Limit* limit, const Worst* worst, const Least* least,
                         int64_t* selected, const int64_t* parameters) {
    const int64_t batches = parameters[0], classes = parameters[1], count = parameters[2], expected = parameters[3];
    const bool centre = parameters[4];
    const int64_t most = limit ? int64_t(*limit) : 0;
    std::vector<int64_t> result, candidates, kept;
    for (int64_t n = 0; n < batches; ++n)
        for (int64_t c = 0; c < classes; ++c) {
            const T* score = scores + (n * classes + c) * count;
            const auto box = [&](int64_t k) { return Box<T>::of(boxes + (n * count + k) * 4, centre); };
            candidates.clear();
            kept.clear();
            for (int64_t k = 0; k < count; ++k)
                if (!least || score[k] > *least) candidates.push_back(k);
            std::stable_sort(candidates.begin(), candidates.end(),
                             [&](int64_t a, int64_t b) { return before(score[b], score[a]); });
            for (const int64_t k : candidates) {
                if (int64_t(kept.size()) >= most) break;
                const auto covers = [&](int64_t better) {
                    return overlap(box(k), box(better)) > (worst ? T(*worst) : T(0));
                };
                if (std::none_of(kept.begin(), kept.end(), covers)) kept.push_back(k);
            }
            for (const int64_t k : kept) result.insert(result.end(), {n, c, k});
        }
    if (expect_count("NonMaxSuppression", int64_t(result.size() / 3), expected))
        std::copy(result.begin(), result.end(), selected);
}

}  // namespace daceopt
