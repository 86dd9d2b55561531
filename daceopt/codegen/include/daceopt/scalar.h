// What scalar code calls, in the dialect of the header before it: NaN-propagating selection, integer division, random
// numbers. DOP stands before a function, DOP_INLINE before a specialisation, DOP_MEMBER before a static member.
#ifndef DACEOPT_SCALAR_H
#define DACEOPT_SCALAR_H

namespace dop {

DOP float floor(float x) { return __builtin_floorf(x); }
DOP double floor(double x) { return __builtin_floor(x); }
DOP float ceil(float x) { return __builtin_ceilf(x); }
DOP double ceil(double x) { return __builtin_ceil(x); }
DOP float trunc(float x) { return __builtin_truncf(x); }
DOP double trunc(double x) { return __builtin_trunc(x); }
DOP float round_even(float x) { return __builtin_rintf(x); }
DOP double round_even(double x) { return __builtin_rint(x); }
DOP float sqrt(float x) { return __builtin_sqrtf(x); }
DOP double sqrt(double x) { return __builtin_sqrt(x); }
DOP float abs(float x) { return __builtin_fabsf(x); }
DOP double abs(double x) { return __builtin_fabs(x); }
DOP float log1p(float x) { return ::log1pf(x); }
DOP double log1p(double x) { return ::log1p(x); }
DOP float expm1(float x) { return ::expm1f(x); }
DOP double expm1(double x) { return ::expm1(x); }
DOP float copysign(float a, float b) { return __builtin_copysignf(a, b); }
DOP double copysign(double a, double b) { return __builtin_copysign(a, b); }

// Integers are their own floor, ceiling and rounding.
template <class T> DOP T floor(T x) { return x; }
template <class T> DOP T ceil(T x) { return x; }
template <class T> DOP T trunc(T x) { return x; }
template <class T> DOP T round_even(T x) { return x; }
template <class T> DOP T abs(T x) { return x < T(0) ? T(-x) : x; }

template <class T> DOP T infinity() { return T(__builtin_inff()); }
template <class T> DOP T nan() { return T(__builtin_nanf("")); }
template <class T> DOP bool isnan(T x) { return x != x; }
template <class T> DOP bool isinf(T) { return false; }
template <> DOP_INLINE bool isinf(float x) { return abs(x) == infinity<float>(); }
template <> DOP_INLINE bool isinf(double x) { return abs(x) == infinity<double>(); }

// Both sides are computed; a NaN on either side is the result. Two choices in turn, for of one with two conditions gcc
// makes branches where several maxima follow one another, and no vectors.
template <class T> DOP T maximum(T a, T b) {
  const T larger = a > b ? a : b;
  return a != a ? a : larger;
}
template <class T> DOP T minimum(T a, T b) {
  const T smaller = a < b ? a : b;
  return a != a ? a : smaller;
}
// An element of an array of truth values: lanes of bools gcc takes apart, those of bytes it compares.
DOP bool truth(const bool& element) { return reinterpret_cast<const uint8_t&>(element) != 0; }
template <class T> DOP T select(bool condition, T a, T b) { return condition ? a : b; }
template <class T> DOP T sign(T x) { return isnan(x) ? x : T(T(x > T(0)) - T(x < T(0))); }

// exp(x) up to the point from which 1 + exp(-x) rounds to 1; used by everything that saturates there.
DOP float exp_saturated(float x) { return exp(minimum(x, 20.0f)); }
DOP double exp_saturated(double x) { return exp(minimum(x, 40.0)); }
template <class T> DOP T sigmoid(T x) {
  const T e = exp_saturated(x);
  return e / (T(1) + e);
}
DOP float softplus(float x) { return x > 20.0f ? x : log1p(exp_saturated(x)); }
DOP double softplus(double x) { return x > 40.0 ? x : log1p(exp_saturated(x)); }

// Powers by repeated squaring.
template <unsigned N, class T> DOP T ipow(T x) {
  if constexpr (N == 0) return T(1);
  else if constexpr (N == 1) return x;
  else if constexpr (N % 2 == 0) { const T h = ipow<N / 2>(x); return T(h * h); }
  else return T(ipow<N - 1>(x) * x);
}
// x to N + 1/2, N above 0: infinite for -infinity, as pow is.
template <unsigned N, class T> DOP T half_power(T x) {
  const T found = ipow<N>(x) * sqrt(x);
  return x == -infinity<T>() ? infinity<T>() : found;
}
DOP float power(float a, float b) { return ::powf(a, b); }
DOP double power(double a, double b) { return ::pow(a, b); }
template <class T> DOP T power(T a, T b) {
  if (b < T(0)) return a == T(1) ? T(1) : a == T(-1) ? ((b & 1) ? T(-1) : T(1)) : T(0);
  T result = 1;
  for (; b > T(0); b = T(b >> 1), a = T(a * a)) if (b & 1) result = T(result * a);
  return result;
}

// Division that cannot trap: a zero divisor gives 0, and the smallest integer over -1 wraps.
template <class T> DOP T idiv(T a, T b) {
  if constexpr (T(-1) < T(0)) { if (b == T(-1)) return T(0 - uint64_t(a)); }
  return b == T(0) ? T(0) : T(a / b);
}
DOP float idiv(float a, float b) { return trunc(a / b); }
DOP double idiv(double a, double b) { return trunc(a / b); }
template <class T> DOP T fmod(T a, T b) {
  if constexpr (T(-1) < T(0)) { if (b == T(-1)) return T(0); }
  return b == T(0) ? T(0) : T(a % b);
}
template <class T> DOP T pymod(T a, T b) {
  const T r = fmod(a, b);
  return (r != T(0)) & ((r < T(0)) != (b < T(0))) ? T(r + b) : r;
}
DOP int64_t floordiv(int64_t a, int64_t b) { return idiv(a - pymod(a, b), b); }

template <class T> DOP T bit_and(T a, T b) { return T(a & b); }
template <class T> DOP T bit_or(T a, T b) { return T(a | b); }
template <class T> DOP T bit_xor(T a, T b) { return T(a ^ b); }
template <class T> DOP T bit_not(T a) { return T(~a); }
// By the width or more, or by less than 0: copies of the sign to the right, 0 to the left.
template <class T> DOP T shift_left(T a, T b) { return uint64_t(b) < 8 * sizeof(T) ? T(uint64_t(a) << b) : T(0); }
template <class T> DOP T shift_right(T a, T b) {
  return uint64_t(b) < 8 * sizeof(T) ? T(a >> b) : a < T(0) ? T(-1) : T(0);
}

// Philox2x32-7; documented in daceopt/ir/scalar/philox.py, which computes the same bits.
DOP float uniform(int64_t seed, int64_t node, int64_t element) {
  uint64_t z = uint64_t(seed) * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 33)) * UINT64_C(0xFF51AFD7ED558CCD);
  uint32_t key = uint32_t(z ^ (z >> 32));
  uint32_t c0 = uint32_t(element), c1 = uint32_t(uint64_t(element) >> 32) ^ uint32_t(node);
  for (int round = 0; round < 7; ++round) {
    const uint64_t product = UINT64_C(0xD256D193) * c0;
    c0 = uint32_t(product >> 32) ^ key ^ c1;
    c1 = uint32_t(product);
    key += UINT32_C(0x9E3779B9);
  }
  return float(int32_t(c0 >> 8)) * (1.0f / 16777216.0f);
}

// A run-time index: out of range it is replaced by 0 and noted in `bad`.
DOP int64_t index(int64_t i, int64_t extent, int32_t& bad) {
  const bool outside = uint64_t(i) >= uint64_t(extent);
  bad |= int32_t(outside);
  return outside ? 0 : i;
}
// What is loaded from an array that has no element: noted in `bad` unless an index says that nothing is wanted.
template <class T, class... I> DOP T nothing(int32_t& bad, I... index) {
  bad |= int32_t(!(... || (int64_t(index) == -(INT64_C(1) << 62) - 1)));
  return T(0);
}

// A value of which something must hold: where it does not, `kind` is noted in `bad`.
template <class T> DOP T checked(bool holds, T value, int64_t kind, int32_t& bad) {
  bad |= holds ? 0 : int32_t(kind);
  return value;
}

template <class T> struct lowest { static constexpr T value = T(-1) < T(0) ? T(T(1) << (8 * sizeof(T) - 1)) : T(0); };
template <> struct lowest<float> { static constexpr float value = -__builtin_inff(); };
template <> struct lowest<double> { static constexpr double value = -__builtin_inf(); };
template <> struct lowest<bool> { static constexpr bool value = false; };
template <class T> struct highest { static constexpr T value = T(-1) < T(0) ? T(~lowest<T>::value) : T(~T(0)); };
template <> struct highest<float> { static constexpr float value = __builtin_inff(); };
template <> struct highest<double> { static constexpr double value = __builtin_inf(); };
template <> struct highest<bool> { static constexpr bool value = true; };

}  // namespace dop

#endif  // DACEOPT_SCALAR_H
