// What a frame needs: few names of the standard library, and integer functions over sizes. Each program reads it, so it
// has no header that takes long to compile (<vector>, <algorithm> and <chrono> take a tenth of a second each).
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <type_traits>

using std::abs;

// Told the number of each node of a frame before it runs, and how many there are behind the last.
using daceopt_mark = void (*)(int64_t node);

// Nanoseconds of a clock that never goes back.
inline int64_t daceopt_now() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// Sizes and loop counters, whose types may differ: int64_t, int, long long.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
template <typename A, typename B, typename C, typename... More>
constexpr std::common_type_t<A, B, C, More...> min(A a, B b, C c, More... more) {
    return min(min(a, b), c, more...);
}
template <typename A, typename B, typename C, typename... More>
constexpr std::common_type_t<A, B, C, More...> max(A a, B b, C c, More... more) {
    return max(max(a, b), c, more...);
}
template <typename... T>
constexpr auto Min(T... all) {  // SymPy's names
    return min(all...);
}
template <typename... T>
constexpr auto Max(T... all) {
    return max(all...);
}
template <typename T>
T Abs(T a) {
    return abs(a);
}
constexpr int64_t int_floor(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
constexpr int64_t int_ceil(int64_t a, int64_t b) { return -int_floor(-a, b); }
