// The dialect of kernels for the CPU: vector math, threads, scratch memory. scalar.h follows it.
// Kept small: a kernel compiles in about 0.2 s because nothing of the C++ library is included.
#ifndef DACEOPT_CPU_H
#define DACEOPT_CPU_H
#include <stdint.h>
#include <stdlib.h>

// glibc's vector variants (libmvec) are visible only under -ffast-math, which would break NaN and infinities.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GLIBC_PREREQ) && defined(__GNUC__) && !defined(__clang__)
#if __GLIBC_PREREQ(2, 22)
#define DOP_VECTOR_2_22 __attribute__((simd("notinbranch")))
#endif
#if __GLIBC_PREREQ(2, 35)
#define DOP_VECTOR_2_35 __attribute__((simd("notinbranch")))
#endif
#endif
#ifndef DOP_VECTOR_2_22
#define DOP_VECTOR_2_22
#endif
#ifndef DOP_VECTOR_2_35
#define DOP_VECTOR_2_35
#endif

#define DOP_UNARY(attributes, name)             \
  attributes double name(double) noexcept;      \
  attributes float name##f(float) noexcept;
#define DOP_BINARY(attributes, name)                \
  attributes double name(double, double) noexcept;  \
  attributes float name##f(float, float) noexcept;
extern "C" {
DOP_UNARY(DOP_VECTOR_2_22, log)
DOP_UNARY(DOP_VECTOR_2_22, sin)
DOP_UNARY(DOP_VECTOR_2_22, cos)
DOP_UNARY(DOP_VECTOR_2_35, tan)
DOP_UNARY(DOP_VECTOR_2_35, sinh)
DOP_UNARY(DOP_VECTOR_2_35, cosh)
DOP_UNARY(DOP_VECTOR_2_35, tanh)
DOP_UNARY(DOP_VECTOR_2_35, asin)
DOP_UNARY(DOP_VECTOR_2_35, acos)
DOP_UNARY(DOP_VECTOR_2_35, atan)
DOP_UNARY(DOP_VECTOR_2_35, asinh)
DOP_UNARY(DOP_VECTOR_2_35, acosh)
DOP_UNARY(DOP_VECTOR_2_35, atanh)
DOP_UNARY(DOP_VECTOR_2_35, erf)
DOP_UNARY(DOP_VECTOR_2_35, log1p)
DOP_UNARY(DOP_VECTOR_2_35, expm1)
DOP_UNARY(DOP_VECTOR_2_35, erfc)
DOP_BINARY(DOP_VECTOR_2_22, pow)
DOP_UNARY(, log2)  // without their vector variants, which are not exact at powers of the base
DOP_UNARY(, log10)
int omp_get_max_threads(void) noexcept;
int omp_get_thread_num(void) noexcept;
}

#define DOP static inline __attribute__((always_inline))
#define DOP_INLINE inline
#define DOP_MEMBER static
#ifdef __FLT16_MAX__
#define DOP_HALF _Float16
#endif

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
#ifdef __FP_FAST_FMAF
DOP float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
DOP float fma(float a, float b, float c) { return a * b + c; }
#endif
#ifdef __FP_FAST_FMA
DOP double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
DOP double fma(double a, double b, double c) { return a * b + c; }
#endif

// exp(r) * 2^k.
DOP float powered(float r, float k) {
  constexpr float with_bias = 12582912.0f + 127.0f;
  float y = 1.39261836e-3f;
  y = fma(y, r, 8.36317905e-3f);
  y = fma(y, r, 4.16665546e-2f);
  y = fma(y, r, 1.66665770e-1f);
  y = fma(y, r, 0.5f);
  y = fma(y, r, 1.0f);
  y = fma(y, r, 1.0f);
  const float half = fma(k, 0.5f, with_bias), rest = (k - (half - with_bias)) + with_bias;
  return y * shifted(half) * shifted(rest);
}
DOP double powered(double r, double k) {
  constexpr double with_bias = 6755399441055744.0 + 1023.0;
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

// exp without a branch. libmvec's leaves its vectors for a lane at which the result is 0, no normal number or infinite,
// as it is at each masked score: six times as slow with one in three of them. Off by less than one unit in the last
// place, of results that are no normal numbers as well. x = k ln(2) + r with |r| < 0.35 and ln(2) in two parts, of which
// k times the first is exact; k is the last bits of a float so large that these are its integers; 2^k in two factors,
// for it may be out of range where the product with the polynomial is not.
DOP float exp(float x) {
  constexpr float last_bits = 12582912.0f;  // 1.5 * 2^23
  float inside = x < -104.0f ? -104.0f : x;  // where the result is 0; a NaN passes
  inside = inside > 89.0f ? 89.0f : inside;  // infinite
  const float k = fma(inside, 1.44269504f, last_bits) - last_bits;
  return powered(fma(k, -1.42860677e-6f, fma(k, -0.693145752f, inside)), k);
}
DOP double exp(double x) {
  constexpr double last_bits = 6755399441055744.0;  // 1.5 * 2^52
  double inside = x < -746.0 ? -746.0 : x;
  inside = inside > 710.0 ? 710.0 : inside;
  const double k = fma(inside, 1.4426950408889634, last_bits) - last_bits;
  return powered(fma(k, -1.9082149292705877e-10, fma(k, -0.69314718036912382, inside)), k);
}

// Transposition of tiles. Loops would load or store the lanes of a vector one by one.

template <int bytes> struct Bits;
template <> struct Bits<1> { typedef uint8_t type; };
template <> struct Bits<2> { typedef uint16_t type; };
template <> struct Bits<4> { typedef uint32_t type; };
template <> struct Bits<8> { typedef uint64_t type; };

#if __has_builtin(__builtin_shufflevector)
#define DOP_SHUFFLED(Row, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // gcc up to 11
#define DOP_SHUFFLED(Row, a, b, ...) __builtin_shuffle(a, b, Row{__VA_ARGS__})
#endif

// y[i, j] = x[j, i] of 8 x 8 elements. Each round interleaves the upper and the lower rows; after three, rows are columns.
template <class T>
static inline __attribute__((always_inline)) void transposed_block(const T* x, int64_t x_step, T* y, int64_t y_step) {
  typedef typename Bits<sizeof(T)>::type Row __attribute__((vector_size(8 * sizeof(T))));
  Row a[8], b[8];
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) __builtin_memcpy(&a[k], x + k * x_step, sizeof(Row));
#pragma GCC unroll 3
  for (int round = 0; round < 3; ++round) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      b[2 * k] = DOP_SHUFFLED(Row, a[k], a[k + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      b[2 * k + 1] = DOP_SHUFFLED(Row, a[k], a[k + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) a[k] = b[k];
  }
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) __builtin_memcpy(y + k * y_step, &a[k], sizeof(Row));
}

// y[i, j] = x[j, i] for i < rows, j < columns; steps are elements from row to row.
template <class T>
static inline void transposed(int64_t rows, int64_t columns, const T* x, int64_t x_step, T* y, int64_t y_step) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t i = 0; i < whole_rows; i += 8) {
    for (int64_t j = 0; j < whole_columns; j += 8)
      transposed_block(x + j * x_step + i, x_step, y + i * y_step + j, y_step);
    for (int64_t k = i; k < i + 8; ++k)
      for (int64_t j = whole_columns; j < columns; ++j) y[k * y_step + j] = x[j * x_step + k];
  }
  for (int64_t i = whole_rows; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) y[i * y_step + j] = x[j * x_step + i];
}

// Memory of one call, 64-byte aligned.
template <class T> struct Scratch {
  T* data;
  explicit Scratch(int64_t count)
      : data(static_cast<T*>(aligned_alloc(64, (uint64_t(count) * sizeof(T) + 127) & ~uint64_t(63)))) {
    if (!data) __builtin_trap();
  }
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
};

}  // namespace dop

#endif  // DACEOPT_CPU_H
