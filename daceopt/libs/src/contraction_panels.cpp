// Products of DACEOPT_T by a factor that a loop holds.
#include "daceopt/contraction_held.h"

#include "daceopt/panel_product.h"

namespace daceopt {

template <typename T>
void contraction_panels(Product<T> p, WeightMemory* kept) try {
    using namespace detail;
    if (p.m == 0 || p.n == 0) return;
    if (p.k == 0) {
        zero(p);
        return epilogue(p);
    }
    const auto fill = [&](void* place, const void*) { panels::pack(p.b, p.k, p.n, static_cast<T*>(place)); };
    const size_t bytes = p.k * panels::rounded<T>(p.n) * sizeof(T);
    const auto* packed = static_cast<const T*>(kept->prepared({nullptr, bytes, nullptr, 0, fill}));
    std::unique_ptr<T[]> rows;
    if (p.a.col != 1) rows = pack(p.a, p.m, p.k, p.batch);
    if (panels::multiply(p, packed)) p.residual.data = nullptr;
    if (p.alpha != T(1)) panels::scale(p);
    epilogue(p);
} catch (const std::bad_alloc&) {
    fail("Contraction", "out of memory");
}

template void contraction_panels(Product<DACEOPT_T>, WeightMemory*);

}  // namespace daceopt
