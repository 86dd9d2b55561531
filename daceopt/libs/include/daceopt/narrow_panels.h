// Panels of the right factor of a product of bfloat16 tiles, as the units of a CPU take them.
#pragma once
#include <cstring>

#include "daceopt/cpu.h"
#include "daceopt/narrow_product.h"

namespace daceopt {

constexpr int64_t kPanel = 64;  // columns of a panel, as oneDNN's micro-kernels take them

// `columns` columns of B from `first` on, pairs of their rows side by side as the units take them; a last single row has
// zeros beside it. `panel` has kPanel pairs in a row.
inline void pack_panel(const NarrowTile& t, int64_t first, int64_t columns, uint32_t* panel) {
    const int64_t pairs = t.k / 2;
    if (!t.turned) {
        for (int64_t p = 0; p < pairs; ++p) {
            const uint16_t *even = t.b + 2 * p * t.ldb + first, *odd = even + t.ldb;
            uint32_t* row = panel + p * kPanel;
#pragma omp simd
            for (int64_t j = 0; j < columns; ++j) row[j] = even[j] | static_cast<uint32_t>(odd[j]) << 16;
        }
    } else {
        constexpr int64_t kBlock = 16;
        const int64_t whole = t.ldb % 2 ? 0 : pairs / kBlock * kBlock, wide = t.ldb % 2 ? 0 : columns / kBlock * kBlock;
        const uint16_t* begin = t.b + first * t.ldb;
        for (int64_t p = 0; p < whole; p += kBlock)
            for (int64_t j = 0; j < wide; j += kBlock)
                dop::transposed_block<kBlock>(reinterpret_cast<const uint32_t*>(begin + j * t.ldb) + p, t.ldb / 2,
                                              panel + p * kPanel + j, kPanel);
        for (int64_t p = 0; p < pairs; ++p)
            for (int64_t j = p < whole ? wide : 0; j < columns; ++j)
                std::memcpy(panel + p * kPanel + j, begin + j * t.ldb + 2 * p, sizeof(uint32_t));
    }
    if (t.k % 2)
        for (int64_t j = 0; j < columns; ++j)
            panel[pairs * kPanel + j] = t.turned ? t.b[(first + j) * t.ldb + t.k - 1] : t.b[(t.k - 1) * t.ldb + first + j];
}

}  // namespace daceopt
