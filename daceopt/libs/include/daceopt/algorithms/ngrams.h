// Counts of known n-grams in rows of tokens, with gaps of equal length allowed between the tokens.
#pragma once
#include <algorithm>
#include <cstdint>

namespace daceopt {

// items: one n-gram per line of `widest` tokens (padded), sorted by length and then by tokens; starts: for each length
// from 1 to widest the first of its lines, and the number of all lines; columns: where each n-gram is counted.
// parameters: rows, tokens in a row, columns of y, widest, shortest n-gram wanted, longest, largest number of tokens
// skipped. Single tokens are counted once, whatever may be skipped.
template <typename T>
void ngrams(const T* x, const int64_t* items, const int64_t* starts, const int64_t* columns, float* y,
            const int64_t* parameters) {
    const int64_t rows = parameters[0], tokens = parameters[1], width = parameters[2], widest = parameters[3];
    const int64_t shortest = parameters[4], longest = std::min(parameters[5], widest), skips = parameters[6];
    std::fill(y, y + rows * width, 0.0f);
#pragma omp parallel for if (rows > 1 && rows * tokens > 4096)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t size = shortest; size <= longest; ++size)
            for (int64_t step = 1; step <= (size == 1 ? 1 : skips + 1); ++step)
                for (int64_t at = 0; at + (size - 1) * step < tokens; ++at) {
                    const T* first = x + row * tokens + at;
                    int64_t low = starts[size - 1], high = starts[size];
                    while (low < high) {  // the first line that is not less
                        const int64_t middle = (low + high) / 2, *line = items + middle * widest;
                        int64_t k = 0;
                        while (k < size && line[k] == int64_t(first[k * step])) ++k;
                        if (k < size && line[k] < int64_t(first[k * step])) low = middle + 1;
                        else high = middle;
                    }
                    const int64_t* line = items + low * widest;
                    bool found = low < starts[size];
                    for (int64_t k = 0; found && k < size; ++k) found = line[k] == int64_t(first[k * step]);
                    if (found) y[row * width + columns[low]] += 1.0f;
                }
}

}  // namespace daceopt
