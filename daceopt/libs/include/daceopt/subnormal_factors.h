// Products of factors among which are many subnormal numbers, as in gradients that fade: a CPU takes some 150 cycles for
// each instruction that meets one. Their factors are copied, times powers of two, and so is the result back: it is the
// product's own, but for bits that the product itself loses below the smallest normal number.
//
// Matrices are column-major, as a BLAS has them. What includes this needs libs/src/scratch.cpp.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "daceopt/scratch.h"

namespace daceopt::detail {

// Did instructions of this thread meet subnormal numbers, or make some, since this began?
class SubnormalFlags {
public:
#ifdef __SSE2__
    SubnormalFlags() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kFlags); }
    ~SubnormalFlags() { _mm_setcsr(_mm_getcsr() | (before_ & kFlags)); }
    bool raised() const { return _mm_getcsr() & kFlags; }

private:
    static constexpr unsigned kFlags = 0x12;  // denormal operand, underflow
    unsigned before_;
#else
    bool raised() const { return false; }
#endif
};

// What products of a shape did lately: positive where flags were raised and looks at their factors found many subnormal
// numbers, negative for products at which nobody looks, since looks found few. Shapes that share an entry only look more
// often, and so do threads that lose each other's counts.
class ProductHistory {
public:
    explicit ProductHistory(size_t shape) : entry_(entries()[shape % kEntries]) {}
    bool is_suspect() const { return get() > 0; }
    void ran(bool raised) {
        if (const int n = get(); n < 0) set(n + 1);
        else if (n == 0 && raised) set(kLooks);
    }
    void looked(bool pays) {
        const int n = get();
        set(pays ? std::min(n + kLooks, kMost) : n > 1 ? n - 1 : -kMost);
    }

private:
    static constexpr size_t kEntries = 1021;
    static constexpr int kLooks = 4, kMost = 64;
    using Entry = std::atomic<int>;
    static Entry* entries() {
        static Entry all[kEntries] = {};
        return all;
    }
    int get() const { return entry_.load(std::memory_order_relaxed); }
    void set(int count) { entry_.store(count, std::memory_order_relaxed); }
    Entry& entry_;
};

constexpr int64_t kParallelFactor = 65536;  // elements from which a copy is worth all threads

template <typename T>
struct Layout {  // of a number in memory
    using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    static constexpr Bits kAbsolute = ~Bits(0) >> 1, kNormal = Bits(1) << (std::numeric_limits<T>::digits - 1);
    static Bits of(const T& x) {
        Bits bits;
        std::memcpy(&bits, &x, sizeof bits);
        return bits;
    }
    static T number(Bits bits) {
        T x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    }
};

// A factor: `columns` of `rows` elements side by side.
template <typename T>
struct Factor {
    const T* data;
    int64_t rows, columns, stride;
    int exponent = 0;  // of the largest number, which is below 2 to the power of it
    int64_t subnormal = 0;
    bool is_finite = true;

    int64_t elements() const { return rows * columns; }

    void look() {
        using Bits = typename Layout<T>::Bits;
        Bits largest = 0;
#pragma omp parallel for reduction(max : largest) reduction(+ : subnormal) if (elements() > kParallelFactor)
        for (int64_t j = 0; j < columns; ++j) {
            const T* column = data + j * stride;
            Bits count = 0;
#pragma omp simd reduction(max : largest) reduction(+ : count)
            for (int64_t i = 0; i < rows; ++i) {
                const Bits bits = Layout<T>::of(column[i]) & Layout<T>::kAbsolute;
                largest = std::max(largest, bits);
                count += bits - 1 < Layout<T>::kNormal - 1;
            }
            subnormal += count;
        }
        const T value = Layout<T>::number(largest);
        is_finite = std::isfinite(value);
        if (is_finite) std::frexp(value, &exponent);
    }

    // Copies it to `to`, times a power of two. A subnormal number is made of its integer: no instruction meets it.
    void scale(int power, T* to) {
        using Bits = typename Layout<T>::Bits;
        using Integer = std::make_signed_t<Bits>;
        constexpr int kUnit = std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits;
        const T factor = std::ldexp(T(1), power), unit = std::ldexp(T(1), power + kUnit);
#pragma omp parallel for if (elements() > kParallelFactor)
        for (int64_t j = 0; j < columns; ++j)
#pragma omp simd
            for (int64_t i = 0; i < rows; ++i) {
                const Bits bits = Layout<T>::of(data[j * stride + i]), absolute = bits & Layout<T>::kAbsolute;
                const bool small = absolute < Layout<T>::kNormal;
                const T normal = Layout<T>::number(small ? 0 : bits) * factor;
                const T count = static_cast<T>(static_cast<Integer>(small ? absolute : 0)) * unit;
                to[j * rows + i] = small ? (bits == absolute ? count : -count) : normal;
            }
        data = to;
        stride = rows;
    }
};

// Powers of two for both factors: as large as `alpha` times sums of k products allow.
template <typename T>
struct Powers {
    int a, b;
    Powers(int largest_a, int largest_b, int64_t k, T alpha) {
        constexpr int kMost = std::numeric_limits<T>::max_exponent - 2;
        const double sums = std::log2(double(k)) + std::max(0.0, std::log2(std::abs(double(alpha))));
        const int budget = kMost - static_cast<int>(std::ceil(sums));
        a = std::clamp(budget / 2 - largest_a, 0, kMost);
        b = std::clamp(budget - largest_a - a - largest_b, 0, kMost);
        if (largest_a + a + largest_b + b > budget) a = std::max(0, budget - largest_a - largest_b), b = 0;
    }
};

// c = alpha a b by `gemm`, column-major, of scaled factors; false, and nothing is done, where it would not pay.
template <typename T, typename Gemm>
bool multiply_scaled(const Gemm& gemm, char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                     const T* b, int64_t ldb, T* c, int64_t ldc) {
    Factor<T> fa{a, ta == 'N' ? m : k, ta == 'N' ? k : m, lda}, fb{b, tb == 'N' ? k : n, tb == 'N' ? n : k, ldb};
    fa.look();
    fb.look();
    // each meets as many partners as the other factor has; measured: so many elements are copied in the time of one meeting
    constexpr int64_t kWorth = 24;
    const int64_t slow = fa.subnormal * n + fb.subnormal * m, copied = fa.elements() + fb.elements() + m * n;
    const bool is_small = fa.exponent + fb.exponent + std::log2(double(k)) < std::numeric_limits<T>::min_exponent;
    const Powers<T> powers(fa.exponent, fb.exponent, k, alpha);
    if (!fa.is_finite || !fb.is_finite || !(is_small || slow * kWorth > copied) || powers.a + powers.b == 0) return false;
    fa.scale(powers.a, static_cast<T*>(scratch(Purpose::kLeftFactor, fa.elements() * sizeof(T))));
    fb.scale(powers.b, static_cast<T*>(scratch(Purpose::kRightFactor, fb.elements() * sizeof(T))));
    gemm(ta, tb, m, n, k, alpha, fa.data, fa.stride, fb.data, fb.stride, c, ldc);
    const double down_a = std::ldexp(1.0, -powers.a), down_b = std::ldexp(1.0, -powers.b);  // a float is rounded once
#pragma omp parallel for if (m * n > kParallelFactor)
    for (int64_t j = 0; j < n; ++j)
        for (int64_t i = 0; i < m; ++i) c[j * ldc + i] = static_cast<T>(c[j * ldc + i] * down_a * down_b);
    return true;
}

// The same by `gemm` itself, and scaled where the last products of the shape met subnormal numbers and had many.
template <typename T, typename Gemm>
void multiply_watching(const Gemm& gemm, char ta, char tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                       const T* b, int64_t ldb, T* c, int64_t ldc) {
    constexpr int64_t kFew = 8;  // of fewer rows or columns a copy would use each element as often as the product does
    if (m < kFew || n < kFew) return gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
    ProductHistory history(((m * 31 + n) * 31 + k) * 4 + (ta == 'N') * 2 + (tb == 'N'));
    if (history.is_suspect()) {
        const bool pays = multiply_scaled(gemm, ta, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
        history.looked(pays);
        if (pays) return;
    }
    const SubnormalFlags flags{};
    gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, c, ldc);
    history.ran(flags.raised());
}

}  // namespace daceopt::detail
