// Storage types: how their bits are widened to the type that computes, how values are rounded to them and stored.
// load: bits to value; round: a value to the nearest of the type (ties to even); store: a value to bits, rounding first.
// As elsewhere, what is no float is converted to float first, but to half in one step.
#ifndef DACEOPT_NARROW_H
#define DACEOPT_NARROW_H

namespace dop {

template <class To, class From> DOP To bit_copy(From from) {
  To to;
  static_assert(sizeof to == sizeof from);
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// A float of 1 sign, E exponent and M fraction bits with gradual underflow. INFINITIES: the highest exponent holds
// infinities and NaN; FNUZ: no negative zero, whose bits are NaN; neither: NAN_CODE is NaN (0: there is none).
template <int E, int M, int BIAS, bool INFINITIES, bool FNUZ, unsigned NAN_CODE, class Bits>
struct SmallFloat {
  static constexpr unsigned SIGN = 1u << (E + M), MASK = SIGN - 1;
  static constexpr int LOWEST = 1 - BIAS;  // exponent of the smallest normal number
  static constexpr unsigned TOP = INFINITIES ? ((1u << E) - 1) << M : MASK - (NAN_CODE && !FNUZ ? 1 : 0) + 1;

  DOP_MEMBER double scale(int exponent) { return bit_copy<double>(int64_t(exponent + 1023) << 52); }
  DOP_MEMBER double largest() { return value(TOP - 1); }
  DOP_MEMBER double value(unsigned code) {  // without sign
    const int exponent = int(code >> M);
    const double fraction = double(code & ((1u << M) - 1));
    if (exponent == 0) return fraction * scale(LOWEST - M);
    return (fraction + double(1u << M)) * scale(exponent - BIAS - M);
  }

  DOP_MEMBER float load(Bits bits) {
    const unsigned code = bits & MASK;
    if (FNUZ && bits == SIGN) return __builtin_nanf("");
    if (!FNUZ && NAN_CODE && code == NAN_CODE) return __builtin_nanf("");
    if (INFINITIES && code >= TOP) return code == TOP ? ((bits & SIGN) ? -__builtin_inff() : __builtin_inff()) : __builtin_nanf("");
    const float magnitude = float(value(code));
    return (bits & SIGN) ? -magnitude : magnitude;
  }

  DOP_MEMBER double rounded(double magnitude) {  // of a finite value, to the spacing at its size
    int exponent = int(bit_copy<int64_t>(magnitude) >> 52) - 1023;
    exponent = exponent < LOWEST ? LOWEST : exponent;
    return __builtin_rint(magnitude * scale(M - exponent)) * scale(exponent - M);
  }
  template <class T> DOP_MEMBER float round_to(T x, bool saturate) {
    if (x != x) return NAN_CODE || INFINITIES || FNUZ ? __builtin_nanf("") : -0.0f;
    const double wide = double(float(x)), magnitude = __builtin_fabs(wide), limit = largest();
    double result = magnitude > 2 * limit ? magnitude : rounded(magnitude);
    if (result > limit) result = saturate ? limit : INFINITIES ? __builtin_inf() : double(__builtin_nanf(""));
    if (FNUZ && result == 0) return 0.0f;
    return float(__builtin_copysign(result, wide));
  }
  template <class T> DOP_MEMBER float round(T x) { return round_to(x, !INFINITIES || E + M < 15); }
  template <class T> DOP_MEMBER float round_unbounded(T x) { return round_to(x, false); }

  DOP_MEMBER Bits store(float x) {
    const float to = round_unbounded(x);
    const unsigned sign = bit_copy<uint32_t>(to) >> 31 ? SIGN : 0;
    if (to != to) return Bits(FNUZ ? SIGN : INFINITIES ? sign | TOP | (1u << (M - 1)) : sign | NAN_CODE);
    const double magnitude = __builtin_fabs(double(to));
    if (INFINITIES && magnitude > largest()) return Bits(sign | TOP);
    const int exponent = int(bit_copy<int64_t>(magnitude) >> 52) - 1023;
    if (magnitude == 0 || exponent < LOWEST) return Bits((magnitude == 0 && FNUZ ? 0 : sign) | unsigned(magnitude * scale(M - LOWEST)));
    return Bits(sign | unsigned(((exponent + BIAS) << M) + int(magnitude * scale(M - exponent)) - (1 << M)));
  }
};

using float8_e4m3fn = SmallFloat<4, 3, 7, false, false, 0x7F, uint8_t>;
using float8_e4m3fnuz = SmallFloat<4, 3, 8, false, true, 0x80, uint8_t>;
using float8_e5m2 = SmallFloat<5, 2, 15, true, false, 0, uint8_t>;
using float8_e5m2fnuz = SmallFloat<5, 2, 16, false, true, 0x80, uint8_t>;
// these have neither infinities nor NaN: everything saturates
template <int E, int M, int BIAS> struct TinyFloat : SmallFloat<E, M, BIAS, false, false, 0, uint8_t> {
  using Base = SmallFloat<E, M, BIAS, false, false, 0, uint8_t>;
  DOP_MEMBER uint8_t store(float x) { return Base::store(Base::round(x)); }
};
using float6_e2m3fn = TinyFloat<2, 3, 1>;
using float6_e3m2fn = TinyFloat<3, 2, 3>;
using float4_e2m1fn = TinyFloat<2, 1, 1>;

using float16_by_steps = SmallFloat<5, 10, 15, true, false, 0, uint16_t>;
#ifdef __CUDACC__
}  // namespace dop
#include <cuda_fp16.h>
namespace dop {
struct float16 {
  DOP_MEMBER float load(uint16_t bits) { return float(bit_copy<__half>(bits)); }
  DOP_MEMBER uint16_t store(float x) { return bit_copy<uint16_t>(__half(x)); }
  template <class T> DOP_MEMBER float round(T x) { return float(__half(x)); }
};
#else
// By integers: gcc converts _Float16 lane by lane.
struct float16 {
  DOP_MEMBER float load(uint16_t bits) {
    const uint32_t magnitude = bits & 0x7FFFu, sign = uint32_t(bits & 0x8000u) << 16, shifted = magnitude << 13;
    const uint32_t finite = bit_copy<uint32_t>(bit_copy<float>(shifted) * 0x1p112f);  // the biases are 15 and 127
    return bit_copy<float>(sign | (magnitude < 0x7C00u ? finite : shifted | 0x7F800000u));
  }
  DOP_MEMBER uint16_t store(float x) {
    const uint32_t code = bit_copy<uint32_t>(x), sign = (code >> 16) & 0x8000u, magnitude = code & 0x7FFFFFFFu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1)) >> 13;  // may become infinite
    const uint32_t small = bit_copy<uint32_t>(bit_copy<float>(magnitude) + 0.5f) - 0x3F000000u;  // the sum rounds
    const uint32_t finite = magnitude < 0x38800000u ? small : normal, other = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    return uint16_t(sign | (magnitude < 0x47800000u ? finite : other));
  }
  DOP_MEMBER float round(float x) { return load(store(x)); }
  DOP_MEMBER float round(bool x) { return x ? 1.0f : 0.0f; }
#ifdef DOP_HALF
  template <class T> DOP_MEMBER float round(T x) { return float(DOP_HALF(x)); }
#else
  template <class T> DOP_MEMBER float round(T x) { return float16_by_steps::round(x); }
#endif
};
#endif

struct bfloat16 {
  DOP_MEMBER float load(uint16_t bits) { return bit_copy<float>(uint32_t(bits) << 16); }
  DOP_MEMBER uint16_t store(float x) {
    const uint32_t code = bit_copy<uint32_t>(x);
    const uint32_t nearest = (code + 0x7FFF + ((code >> 16) & 1)) >> 16;
    return uint16_t(x != x ? (code >> 16) | 0x40 : nearest);
  }
  DOP_MEMBER float round(float x) { return load(store(x)); }
  DOP_MEMBER float round(bool x) { return x ? 1.0f : 0.0f; }
  template <class T> DOP_MEMBER float round(T x) { return round(float(x)); }
};

// A power of two, 2**-127 to 2**127; 255 is NaN.
struct float8_e8m0fnu {
  DOP_MEMBER float load(uint8_t code) {
    return code == 255 ? __builtin_nanf("") : bit_copy<float>(code ? uint32_t(code) << 23 : uint32_t(1) << 22);
  }
  template <class T> DOP_MEMBER float to(T x, int direction, bool saturate) {  // up 1, nearest 0, down -1
    const uint32_t bits = bit_copy<uint32_t>(float(x)), exponent = (bits >> 23) & 0xFF, fraction = bits & 0x7FFFFF;
    bool up = direction > 0 ? fraction > 0 : direction == 0 && (fraction > 0x400000 || (fraction == 0x400000 && exponent > 0));
    if (saturate && exponent == 0xFE) up = false;
    return load(exponent == 0xFF ? 0xFF : uint8_t(exponent + up));
  }
  template <class T> DOP_MEMBER float round(T x) { return to(x, 1, true); }
  template <class T> DOP_MEMBER float round_up(T x) { return to(x, 1, true); }
  template <class T> DOP_MEMBER float round_nearest(T x) { return to(x, 0, true); }
  template <class T> DOP_MEMBER float round_down(T x) { return to(x, -1, true); }
  template <class T> DOP_MEMBER float round_up_unbounded(T x) { return to(x, 1, false); }
  template <class T> DOP_MEMBER float round_nearest_unbounded(T x) { return to(x, 0, false); }
  template <class T> DOP_MEMBER float round_down_unbounded(T x) { return to(x, -1, false); }
  DOP_MEMBER uint8_t store(float x) {
    if (x == 1.0f / 1.7014118346046923e38f) return 0;
    return uint8_t((bit_copy<uint32_t>(to(x, 1, true)) >> 23) & 0xFF);
  }
};

// Integers below 8 bits, one in each byte: the low bits hold the value.
template <int WIDTH, class Value> struct SmallInteger {
  static constexpr int REST = 8 - WIDTH;
  DOP_MEMBER Value load(uint8_t bits) { return Value(Value(uint8_t(bits << REST)) >> REST); }
  DOP_MEMBER uint8_t store(Value x) { return uint8_t(x) & ((1 << WIDTH) - 1); }
  template <class T> DOP_MEMBER Value round(T x) {
    if constexpr (T(0.5) != T(0) && T(2) != T(1)) return load(uint8_t(x > T(-9e15) && x < T(9e15) ? int64_t(x) : 0));
    else return load(uint8_t(x));
  }
};
using int4 = SmallInteger<4, int8_t>;
using uint4 = SmallInteger<4, uint8_t>;
using int2 = SmallInteger<2, int8_t>;
using uint2 = SmallInteger<2, uint8_t>;

}  // namespace dop

#endif  // DACEOPT_NARROW_H
