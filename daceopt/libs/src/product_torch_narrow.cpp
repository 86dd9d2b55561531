// Products of tiles of bfloat16 by the micro-kernels that oneDNN compiles for this CPU's AMX or AVX-512 units, which torch
// exports; found in the process.
#include "daceopt/narrow_panels.h"
#include "daceopt/torch_symbol.h"

namespace {

using daceopt::NarrowTile;
using Brgemm = void (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, const void*, const void*, float*, bool);

// Torch's micro-kernels take packed panels only while its oneDNN is in use: else a plain product would read them as rows.
struct Micro {
    // at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, A, B, C, is_vnni), brgemm_release(is_vnni)
    const Brgemm call = daceopt::torch_symbol<Brgemm>("_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb");
    void (*const release)(bool) = daceopt::torch_symbol<void (*)(bool)>("_ZN2at6native7cpublas14brgemm_releaseEb");
    // at::globalContext(), at::Context::userEnabledMkldnn() const
    void* (*const context)() = daceopt::torch_symbol<void* (*)()>("_ZN2at13globalContextEv");
    bool (*const enabled)(const void*) = daceopt::torch_symbol<bool (*)(const void*)>("_ZNK2at7Context17userEnabledMkldnnEv");
    bool right = false;

    Micro() { right = call && release && context && enabled && __builtin_cpu_supports("avx512bf16") && multiplies(); }

    bool ready() const { return right && enabled(context()); }

    // Does it take packed panels here? oneDNN may be held to fewer instructions than the CPU has.
    bool multiplies() const {
        if (!enabled(context())) return false;
        uint16_t a[2] = {0x3f80, 0x4000};  // 1, 2
        uint32_t b[daceopt::kPanel];
        for (uint32_t& pair : b) pair = 0x40a04040;  // 3 above 5
        float c[16] = {};
        call(1, 16, 2, 2, daceopt::kPanel, 16, false, a, b, c, true);
        release(true);
        for (float value : c)
            if (value != 13) return false;
        return true;
    }
};

// Rows of A with a zero behind the last of an odd number of elements.
const uint16_t* even_rows(const NarrowTile& t, int64_t* lda) {
    thread_local std::vector<uint16_t> memory;
    *lda = t.k + 1;
    uint16_t* rows = daceopt::at_least(memory, t.m * *lda);
    for (int64_t i = 0; i < t.m; ++i) {
        std::memcpy(rows + i * *lda, t.a + i * t.lda, static_cast<size_t>(t.k) * sizeof(uint16_t));
        rows[i * *lda + t.k] = 0;
    }
    return rows;
}

void multiply(const NarrowTile& t) {
    static const Micro micro;
    if (t.m <= 0 || t.n <= 0) return;
    if (t.k <= 0 || !micro.ready()) return daceopt::product_widened(t);
    thread_local std::vector<uint32_t> memory;
    const int64_t pairs = (t.k + 1) / 2;
    uint32_t* panel = daceopt::at_least(memory, pairs * daceopt::kPanel);
    int64_t lda = t.lda;
    const uint16_t* a = t.k % 2 ? even_rows(t, &lda) : t.a;
    for (int64_t j = 0; j < t.n; j += daceopt::kPanel) {
        const int64_t columns = t.n - j < daceopt::kPanel ? t.n - j : daceopt::kPanel;
        daceopt::pack_panel(t, j, columns, panel);
        micro.call(t.m, columns, 2 * pairs, lda, daceopt::kPanel, t.ldc, t.add, a, panel, t.c + j, true);
    }
    micro.release(true);  // the next who uses the tiles of this thread's core configures them anew
}

}  // namespace

DACEOPT_NARROW_PRODUCTS(multiply)
