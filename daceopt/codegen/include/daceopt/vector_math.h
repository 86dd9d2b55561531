// Functions in forms of our own that loops vectorise: where libmvec has none, is slow, or is not exact. Between cpu.h and
// scalar.h. Branchless: both sides of each choice are computed.
#ifndef DACEOPT_VECTOR_MATH_H
#define DACEOPT_VECTOR_MATH_H

namespace dop {

// 2 to the power of what the last bits of x are above the exponent's bias.
DOP float shifted(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits <<= 23;
  __builtin_memcpy(&x, &bits, sizeof bits);
  return x;
}
DOP double shifted(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits <<= 52;
  __builtin_memcpy(&x, &bits, sizeof bits);
  return x;
}

// a * b + c, rounded once where the machine can. The compiler makes none of its own: a number that several kernels
// compute for themselves must be the same in each.
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)  // clang does not define the first
DOP float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
DOP float fma(float a, float b, float c) { return a * b + c; }
#endif
#if defined(__FP_FAST_FMA) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define DOP_FMA
DOP double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
DOP double fma(double a, double b, double c) { return a * b + c; }
#endif

// exp for |r| < 0.35
DOP float exp_of_rest(float r) {
  float y = 1.39261836e-3f;
  y = fma(y, r, 8.36317905e-3f);
  y = fma(y, r, 4.16665546e-2f);
  y = fma(y, r, 1.66665770e-1f);
  y = fma(y, r, 0.5f);
  y = fma(y, r, 1.0f);
  return fma(y, r, 1.0f);
}

// exp without a branch. libmvec's leaves its vectors for a lane at which the result is 0, no normal number or infinite,
// as it is at each masked score: six times as slow with one in three of them. Off by less than one unit in the last
// place, of results that are no normal numbers as well. x = k ln(2) + r with |r| < 0.35 and ln(2) in two parts, of which
// k times the first is exact; k is the last bits of a float so large that these are its integers; 2^k in two factors,
// for it may be out of range where the product with the polynomial is not.
DOP float exp(float x) {
  constexpr float last_bits = 12582912.0f, with_bias = last_bits + 127.0f;  // 1.5 * 2^23
  float inside = x < -104.0f ? -104.0f : x;  // where the result is 0; a NaN passes
  inside = inside > 89.0f ? 89.0f : inside;  // infinite
  const float k = fma(inside, 1.44269504f, last_bits) - last_bits;
  const float r = fma(k, -1.42860677e-6f, fma(k, -0.693145752f, inside));
  const float y = exp_of_rest(r);
  const float half = fma(k, 0.5f, with_bias), rest = (k - (half - with_bias)) + with_bias;
  return y * shifted(half) * shifted(rest);
}
DOP double exp(double x) {
  constexpr double last_bits = 6755399441055744.0, with_bias = last_bits + 1023.0;  // 1.5 * 2^52
  double inside = x < -746.0 ? -746.0 : x;
  inside = inside > 710.0 ? 710.0 : inside;
  const double k = fma(inside, 1.4426950408889634, last_bits) - last_bits;
  const double r = fma(k, -1.9082149292705877e-10, fma(k, -0.69314718036912382, inside));
  double y = 2.5100385495510319e-8;
  y = fma(y, r, 2.7620088445409748e-7);
  y = fma(y, r, 2.7557268459997065e-6);
  y = fma(y, r, 2.4801521295954375e-5);
  y = fma(y, r, 1.9841269863053617e-4);
  y = fma(y, r, 1.3888888917213717e-3);
  y = fma(y, r, 8.3333333333300618e-3);
  y = fma(y, r, 4.1666666666624128e-2);
  y = fma(y, r, 0.16666666666666667);
  y = fma(y, r, 0.5);
  y = fma(y, r, 1.0);
  y = fma(y, r, 1.0);
  const double half = fma(k, 0.5, with_bias), rest = (k - (half - with_bias)) + with_bias;
  return y * shifted(half) * shifted(rest);
}

// x < most ? x : most, and NaN for NaN.
template <class T> DOP T at_most(T x, T most) { return x > most ? most : x; }

// exp for weights that only products read: as exp, and 0 below 2^-100, so that neither the weights nor their share of a
// sum of a million are subnormal numbers, each of which stops a product's multiplications for a hundred cycles. 2^k is one
// factor, whose bits are those of 0 for the least k; infinite from 2^127.5 on.
DOP float exp_weight(float x) {
  constexpr float with_bias = 12582912.0f + 127.0f;
  const float inside = x < -69.3147202f ? -88.0296936f : x;
  const float whole = at_most(fma(inside, 1.44269504f, with_bias), with_bias + 128.0f), k = whole - with_bias;
  return exp_of_rest(fma(k, -1.42860677e-6f, fma(k, -0.693145752f, inside))) * shifted(whole);
}
DOP double exp_weight(double x) { return exp(x); }

// exp for results that are rounded to bfloat16: off by less than 2^-18 of them, 0 where they are no normal numbers, and
// infinite from 2^127.5 on. As exp, with 2^k in one factor, whose bits are those of 0 for the least k.
DOP float exp_rounded(float x) {
  constexpr float with_bias = 12582912.0f + 127.0f;
  const float inside = x < -88.0296936f ? -88.0296936f : x;
  const float whole = at_most(fma(inside, 1.44269504f, with_bias), with_bias + 128.0f), k = whole - with_bias;
  const float r = fma(k, -0.693147182f, inside);
  float y = 4.15136367e-2f;
  y = fma(y, r, 0.167876288f);
  y = fma(y, r, 0.50003022f);
  y = fma(y, r, 0.999966741f);
  return fma(y, r, 1.0f) * shifted(whole);
}
DOP double exp_rounded(double x) { return exp(x); }

// erf, off by less than 2 units: x + x P(x^2) below 0.92, beyond it 1 - 2^-Q(|x|) with a Q that is least off, as seen
// from the result, up to 4, where erfc is below half a unit of 1. libmvec looks numbers up in tables.
DOP float erf(float x) {
  constexpr float last_bits = 12582912.0f, with_bias = last_bits + 127.0f;  // as in exp
  const float size = __builtin_fabsf(x), square = x * x, inside = at_most(size, 4.0f);
  float p = -5.99940657e-4f;
  p = fma(p, square, 4.99483058e-3f);
  p = fma(p, square, -2.67677195e-2f);
  p = fma(p, square, 0.112818457f);
  p = fma(p, square, -0.376124978f);
  p = fma(p, square, 0.128379151f);
  float q = 3.08061572e-4f;
  q = fma(q, inside, -4.63294191e-3f);
  q = fma(q, inside, 3.30068283e-2f);
  q = fma(q, inside, -0.151835904f);
  q = fma(q, inside, -0.917165875f);
  q = fma(q, inside, -1.62809682f);
  q *= inside;  // log2(erfc)
  const float whole = q + with_bias, r = q - (whole - with_bias);
  float y = 1.32764492e-3f;
  y = fma(y, r, 9.67556424e-3f);
  y = fma(y, r, 5.55071346e-2f);
  y = fma(y, r, 0.240221187f);
  y = fma(y, r, 0.693146944f);
  y = fma(y, r, 1.00000012f);
  const float far = __builtin_copysignf(fma(-y, shifted(whole), 1.0f), x), near = fma(p, x, x);
  return size > 0.92f ? far : near;
}
DOP double erf(double x) { return ::erf(x); }

// The remainder of a / b with the sign of a, which is a float, exactly: steps in double take as much of b away as the 53
// bits of a quotient say. What is left has few bits, so no step rounds; with quotients of up to 2^277 there are six.
#ifdef DOP_FMA
DOP float fmod(float a, float b) {
  const double divisor = at_most(__builtin_fabs(double(b)), 1e39), inverse = 1.0 / divisor;  // of infinity a is left
  double rest = __builtin_fabs(double(a));
#pragma GCC unroll 6
  for (int step = 0; step < 6; ++step) rest = fma(-__builtin_trunc(rest * inverse), divisor, rest);
  rest = rest < 0.0 ? rest + divisor : rest;
  rest = rest >= divisor ? rest - divisor : rest;
  return __builtin_copysignf(float(rest), a);
}
#else
DOP float fmod(float a, float b) { return __builtin_fmodf(a, b); }
#endif
DOP double fmod(double a, double b) { return __builtin_fmod(a, b); }

// The angle of (x, y), off by less than 2 units: the arc tangent of the quotient that is at most 1 by a polynomial, turned
// to its octant. Pi is added in two parts.
DOP float atan2(float y, float x) {
  const float rise = __builtin_fabsf(y), run = __builtin_fabsf(x);
  const bool steep = rise > run;
  const float below = steep ? rise : run, above = steep ? run : rise;
  float t = above / below;
  t = below == 0.0f ? 0.0f : t;
  t = above == __builtin_inff() ? 1.0f : t;
  const float s = t * t;
  float p = 2.92070978e-3f;
  p = fma(p, s, -1.63679961e-2f);
  p = fma(p, s, 4.32119668e-2f);
  p = fma(p, s, -7.55222291e-2f);
  p = fma(p, s, 0.106660083f);
  p = fma(p, s, -0.142110556f);
  p = fma(p, s, 0.199937731f);
  p = fma(p, s, -0.333331525f);
  float angle = fma(p * s, t, t);
  angle = steep ? (1.57079637f - angle) + -4.37113883e-8f : angle;
  angle = __builtin_signbit(x) ? (3.14159274f - angle) + -8.74227766e-8f : angle;
  angle = x != x ? x : angle;  // where y is infinite
  return __builtin_copysignf(y != y ? y : angle, y);
}
DOP double atan2(double y, double x) { return ::atan2(y, x); }

// 2 to the power of x, off by less than one unit, and exact where x is whole. As exp, but what is left of x is exact.
DOP float exp2(float x) {
  constexpr float last_bits = 12582912.0f, with_bias = last_bits + 127.0f;
  const float inside = at_most(x < -151.0f ? -151.0f : x, 129.0f);
  const float k = (inside + last_bits) - last_bits, r = inside - k;
  float y = 1.53533518e-4f;
  y = fma(y, r, 1.33989006e-3f);
  y = fma(y, r, 9.61843785e-3f);
  y = fma(y, r, 5.55033237e-2f);
  y = fma(y, r, 0.240226477f);
  y = fma(y, r, 0.693147182f);
  y = fma(y, r, 1.0f);
  const float half = fma(k, 0.5f, with_bias), rest = (k - (half - with_bias)) + with_bias;
  return y * shifted(half) * shifted(rest);
}
DOP double exp2(double x) { return ::exp2(x); }

// The logarithm to a base of which `log` is 1 / ln(base), and `high` + `low` log(2), where `high` has few bits: off by less
// than two units, and exact at powers of the base. x = m 2^k with m between the roots of 1/2 and 2.
DOP float logarithm(float x, float log, float high, float low) {
  const bool small = x < 1.17549435e-38f;  // no normal number
  const float scaled = small ? x * 8388608.0f : x;
  int32_t bits;
  __builtin_memcpy(&bits, &scaled, sizeof bits);
  const int32_t exponent = (bits - 0x3F3504F3) >> 23;
  bits -= exponent * (1 << 23);
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  f -= 1.0f;
  const float k = float(exponent) - (small ? 23.0f : 0.0f);
  float q = -7.62063041e-2f;
  q = fma(q, f, 0.129050061f);
  q = fma(q, f, -0.132437021f);
  q = fma(q, f, 0.141817868f);
  q = fma(q, f, -0.166089997f);
  q = fma(q, f, 0.200019732f);
  q = fma(q, f, -0.250015855f);
  q = fma(q, f, 0.333333254f);
  q = fma(q, f, -0.499999881f);
  const float of_m = fma(q, f * f, f);
  float y = fma(k, high, fma(of_m, log, k * low));
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x >= 0.0f ? y : __builtin_nanf("");
}
DOP float log2(float x) { return logarithm(x, 1.44269504f, 1.0f, 0.0f); }
DOP double log2(double x) { return ::log2(x); }
DOP float log10(float x) { return logarithm(x, 0.434294482f, 0.301025391f, 4.60503907e-6f); }
DOP double log10(double x) { return ::log10(x); }

// 1 - erf, off by less than four units: from 1/2 on exp(-x^2) times a polynomial in (x - 3) / (x + 3), over 1 + 2 x.
// What the square, the sum and the products round away is added again.
DOP float erfc(float x) {
  const float inside = at_most(x, 11.0f), square = inside * inside, rest = fma(inside, inside, -square);
  const float q = (inside - 3.0f) / (inside + 3.0f);
  float p = -2.68507749e-4f;
  p = fma(p, q, -7.78557661e-4f);
  p = fma(p, q, 2.00118288e-3f);
  p = fma(p, q, 2.56769452e-3f);
  p = fma(p, q, -2.37971246e-2f);
  p = fma(p, q, 6.82957768e-2f);
  p = fma(p, q, -0.119271047f);
  p = fma(p, q, 0.129646406f);
  p = fma(p, q, -4.75623943e-2f);
  p = fma(p, q, -0.135621145f);
  p = fma(p, q, 1.25300801f);
  const float below = fma(2.0f, inside, 1.0f), left = fma(2.0f, inside, 1.0f - below), inverse = 1.0f / below;
  const float scale = p * inverse, lacks = fma(-scale, left, fma(-scale, below, p)) * inverse;  // p / (below + left)
  const float power = exp(-square), product = power * scale;
  const float far = product + fma(power, fma(-rest, scale, lacks), fma(power, scale, -product));
  return x >= 0.5f ? far : 1.0f - erf(x);
}
DOP double erfc(double x) { return ::erfc(x); }

// The root of a^2 + b^2. Infinite with an infinite operand, whatever the other is.
DOP float hypot(float a, float b) {
  const double wide_a = a, wide_b = b;
  const float root = float(__builtin_sqrt(wide_a * wide_a + wide_b * wide_b)), infinite = __builtin_inff();
  return __builtin_fabsf(a) == infinite ? infinite : __builtin_fabsf(b) == infinite ? infinite : root;
}
DOP double hypot(double a, double b) { return ::hypot(a, b); }

// The number next to a on the way to b: the next bits, or the last ones; from 0 the smallest of b's sign.
DOP float nextafter(float a, float b) {
  uint32_t bits;
  __builtin_memcpy(&bits, &a, sizeof bits);
  const bool grows = (b > a) == (a > 0.0f);
  uint32_t next = grows ? bits + 1 : bits - 1;
  next = a == 0.0f ? (b < 0.0f ? 0x80000001u : 1u) : next;
  float y;
  __builtin_memcpy(&y, &next, sizeof y);
  y = a == b ? b : y;
  y = b != b ? b : y;
  return a != a ? a : y;
}
DOP double nextafter(double a, double b) { return ::nextafter(a, b); }

}  // namespace dop

#endif  // DACEOPT_VECTOR_MATH_H
