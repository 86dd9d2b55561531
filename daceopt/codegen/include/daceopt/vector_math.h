// Functions for which libm has no vectors, or none that are right at signs of zero and at powers of the base: without a
// branch, so that loops that call them are vectors. Most floats are computed in double and rounded once. After cpu.h.
#ifndef DACEOPT_VECTOR_MATH_H
#define DACEOPT_VECTOR_MATH_H

namespace dop {

DOP float exp2(float x) {
  float inside = x < -151.0f ? -151.0f : x;  // where the result is 0; a NaN passes
  inside = inside > 128.0f ? 128.0f : inside;  // infinite
  const float k = (inside + 12582912.0f) - 12582912.0f;  // the nearest integer
  return powered((inside - k) * 0.693147181f, k);
}
DOP double exp2(double x) {
  double inside = x < -1076.0 ? -1076.0 : x;
  inside = inside > 1024.0 ? 1024.0 : inside;
  const double k = (inside + 6755399441055744.0) - 6755399441055744.0;
  return powered((inside - k) * 0.69314718055994531, k);
}

// In double: powers of the base come out whole.
DOP float log2(float x) { return float(::log(double(x)) * 1.4426950408889634); }
DOP float log10(float x) { return float(::log(double(x)) * 0.43429448190325183); }
DOP double log2(double x) { return ::log2(x); }
DOP double log10(double x) { return ::log10(x); }
DOP float erfc(float x) { return float(::erfc(double(x))); }
DOP double erfc(double x) { return ::erfc(x); }

// Of the point (x, y). A quotient of floats neither overflows nor loses bits.
DOP double angle(double y, double x) {
  const double up = __builtin_fabs(y), along = __builtin_fabs(x);
  double slope = up / along;
  slope = up == along ? 1.0 : slope;  // both infinite, too
  slope = up == 0.0 ? up : slope;
  const double turned = ::atan(slope);
  const double found = __builtin_copysign(1.0, x) < 0.0 ? 3.1415926535897931 - turned : turned;
  return __builtin_copysign(x != x ? x : found, y);
}
DOP double atan2(double y, double x) { return angle(y, x); }
DOP float atan2(float y, float x) { return float(angle(double(y), double(x))); }

DOP float hypot(float a, float b) {
  const double x = double(a), y = double(b);
  const float found = float(__builtin_sqrt(x * x + y * y));
  const bool infinite = (__builtin_fabsf(a) == __builtin_inff()) | (__builtin_fabsf(b) == __builtin_inff());
  return infinite ? __builtin_inff() : found;  // beside a NaN, too
}
DOP double hypot(double a, double b) {
  const double x = __builtin_fabs(a), y = __builtin_fabs(b);
  const double larger = x > y ? x : y, smaller = x > y ? y : x;
  double ratio = smaller / larger;
  ratio = larger == smaller ? 1.0 : ratio;  // zeros
  const double found = larger * __builtin_sqrt(fma(ratio, ratio, 1.0));
  const double sum = x + y;  // a NaN on either side
  return (x == __builtin_inf()) | (y == __builtin_inf()) ? __builtin_inf() : sum != sum ? sum : found;
}

// Numbers of one sign are ordered as their bits are.
template <class T, class Bits> DOP T next(T a, T b) {
  Bits bits;
  __builtin_memcpy(&bits, &a, sizeof a);
  bits += (a < b) == (a > T(0)) ? Bits(1) : Bits(-1);
  T found;
  __builtin_memcpy(&found, &bits, sizeof a);
  const Bits one = 1;
  T least;
  __builtin_memcpy(&least, &one, sizeof one);
  const T beside_zero = b > T(0) ? least : -least;
  found = a == T(0) ? beside_zero : found;
  found = a == b ? b : found;
  const T sum = a + b;
  return (a != a) | (b != b) ? sum : found;
}
DOP float nextafter(float a, float b) { return next<float, uint32_t>(a, b); }
DOP double nextafter(double a, double b) { return next<double, uint64_t>(a, b); }

// What a leaves over whole multiples of b. In double, with products that are not rounded, a multiple of 51 bits is taken
// off exactly: two quotients of floats in 2^53 have more, and no more than 277.
#ifdef __FP_FAST_FMA
DOP float fmod(float a, float b) {
  const double divisor = __builtin_fabsf(b) == __builtin_inff() ? 1e300 : double(__builtin_fabsf(b));
  const double inverse = 1.0 / divisor;
  double rest = double(__builtin_fabsf(a));
#pragma GCC unroll 6
  for (int round = 0; round < 6; ++round) rest = fma(-__builtin_trunc(rest * inverse), divisor, rest);
  rest = rest < 0.0 ? rest + divisor : rest;
  rest = rest >= divisor ? rest - divisor : rest;
  return __builtin_copysignf(float(rest), a);
}
DOP double fmod(double a, double b) {
  const double divisor = __builtin_fabs(b), whole = __builtin_fabs(a), times = whole / divisor;
  if (!(times < 4503599627370496.0) | (divisor == __builtin_inf())) return __builtin_fmod(a, b);
  const double rest = fma(-__builtin_trunc(times), divisor, whole);
  return __builtin_copysign(rest < 0.0 ? rest + divisor : rest, a);
}
#else
DOP float fmod(float a, float b) { return __builtin_fmodf(a, b); }
DOP double fmod(double a, double b) { return __builtin_fmod(a, b); }
#endif

}  // namespace dop

#endif  // DACEOPT_VECTOR_MATH_H
