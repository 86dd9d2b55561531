// Arithmetic and order of element types, alike for all of them: integers wrap around, bools stay bools, NaN is largest.
#pragma once
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "daceopt/status.h"

namespace daceopt {

// float sums and products are kept in double: a running float32 sum loses a digit every tenfold.
template <typename T>
using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, T>;

template <typename T>
T add(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) return a || b;
    else if constexpr (std::is_integral_v<T>) return T(uint64_t(a) + uint64_t(b));
    else return T(a + b);
}

template <typename T>
T multiply(T a, T b) {
    if constexpr (std::is_same_v<T, bool>) return a && b;
    else if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b));
    else return T(a * b);
}

// NaN propagates.
template <typename T>
T larger(T a, T b) {
    return (a > b || a != a) ? a : b;
}

template <typename T>
T smaller(T a, T b) {
    return (a < b || a != a) ? a : b;
}

// A strict weak order: NaN comes last and equals itself.
template <typename T>
bool before(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) return a < b || (b != b && a == a);
    else return a < b;
}

// Whether as many elements were found as the output has room for; reports the error otherwise.
inline bool expect_count(const char* where, int64_t found, int64_t expected) {
    if (found == expected) return true;
    char text[128];
    std::snprintf(text, sizeof text, "expected %lld results (the declared output shape), found %lld",
                  static_cast<long long>(expected), static_cast<long long>(found));
    fail(where, text);
    return false;
}

}  // namespace daceopt
