// Where values would be inserted into sorted rows.
#pragma once
#include <cstdint>

namespace daceopt {

// out[r, n] is the number of boundaries in row r that are below values[r, n], or with `right` not above it.
// parameters: rows; boundaries and values in each; 1 if all rows share the first row of boundaries; right.
// `order` (optional) sorts the boundaries of each row. NaN is above everything.
template <typename T, typename Index>
void searchsorted(const T* boundaries, const T* values, const Index* order, int64_t* out, const int64_t* parameters) {
    const int64_t rows = parameters[0], extent = parameters[1], count = parameters[2];
    const bool shared = parameters[3], right = parameters[4];
#pragma omp parallel for if (rows * count > 4096)
    for (int64_t n = 0; n < rows * count; ++n) {
        const int64_t start = shared ? 0 : n / count * extent;
        int64_t low = 0, high = extent;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            const T boundary = boundaries[start + (order ? int64_t(order[start + middle]) : middle)];
            const bool stays = right ? boundary > values[n] : boundary >= values[n];
            if (stays) high = middle;
            else low = middle + 1;
        }
        out[n] = low;
    }
}

}  // namespace daceopt
