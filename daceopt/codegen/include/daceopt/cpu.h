// The dialect of kernels for the CPU: libmvec, threads, scratch memory. vector_math.h, then
// scalar.h follow it.
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
DOP_BINARY(DOP_VECTOR_2_22, pow)
// of double alone: vector_math.h has those of float
double exp2(double) noexcept;
double log2(double) noexcept;
double log10(double) noexcept;
double erfc(double) noexcept;
double atan2(double, double) noexcept;
double hypot(double, double) noexcept;
double nextafter(double, double) noexcept;
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

// A number that the compiler does not know.
DOP int64_t opaque(int64_t n) {
  asm("" : "+r"(n));
  return n;
}

// Transposition of tiles. Loops would load or store the lanes of a vector one by one.

template <int bytes> struct Bits;
template <> struct Bits<1> { typedef uint8_t type; };
template <> struct Bits<2> { typedef uint16_t type; };
template <> struct Bits<4> { typedef uint32_t type; };
template <> struct Bits<8> { typedef uint64_t type; };

// A condition that is the same in all iterations of a vector loop. Of a bool gcc 12 makes a vector of bytes, for which
// the loop needs as many iterations as a vector has bytes; with fewer it branches in each.
struct Mask {
  int32_t bits;
  Mask() = default;
  Mask(bool condition) : bits(condition ? -1 : 0) {}
  operator bool() const { return bits != 0; }
};
template <class T> DOP T select(Mask mask, T a, T b) {
  if constexpr (sizeof(T) == 4 || sizeof(T) == 8) {
    typedef typename Bits<sizeof(T)>::type Word;
    const Word chosen = Word(int64_t(mask.bits));
    Word x, y;
    __builtin_memcpy(&x, &a, sizeof(T));
    __builtin_memcpy(&y, &b, sizeof(T));
    x = (x & chosen) | (y & ~chosen);
    __builtin_memcpy(&a, &x, sizeof(T));
    return a;
  } else {
    return mask.bits ? a : b;
  }
}

#if __has_builtin(__builtin_shufflevector)
#define DOP_SHUFFLED(Row, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // gcc up to 11
#define DOP_SHUFFLED(Row, a, b, ...) __builtin_shuffle(a, b, Row{__VA_ARGS__})
#endif

template <class T, int width> struct Lanes;
template <class T> struct Lanes<T, 8> {
  typedef typename Bits<sizeof(T)>::type Row __attribute__((vector_size(8 * sizeof(T))));
  DOP Row low(Row a, Row b) { return DOP_SHUFFLED(Row, a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
  DOP Row high(Row a, Row b) { return DOP_SHUFFLED(Row, a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
};
template <class T> struct Lanes<T, 16> {
  typedef typename Bits<sizeof(T)>::type Row __attribute__((vector_size(16 * sizeof(T))));
  DOP Row low(Row a, Row b) { return DOP_SHUFFLED(Row, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23); }
  DOP Row high(Row a, Row b) {
    return DOP_SHUFFLED(Row, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
};

// y[i, j] = x[j, i] of width x width elements. Each round interleaves the upper and the lower rows; after as many as the
// width's logarithm, rows are columns.
template <int width, class T>
static inline __attribute__((always_inline)) void transposed_block(const T* x, int64_t x_step, T* y, int64_t y_step) {
  typedef Lanes<T, width> Of;
  typedef typename Of::Row Row;
  Row a[width], b[width];
#pragma GCC unroll 16
  for (int k = 0; k < width; ++k) __builtin_memcpy(&a[k], x + k * x_step, sizeof(Row));
#pragma GCC unroll 4
  for (int round = 1; round < width; round *= 2) {
#pragma GCC unroll 8
    for (int k = 0; k < width / 2; ++k) {
      b[2 * k] = Of::low(a[k], a[k + width / 2]);
      b[2 * k + 1] = Of::high(a[k], a[k + width / 2]);
    }
#pragma GCC unroll 16
    for (int k = 0; k < width; ++k) a[k] = b[k];
  }
#pragma GCC unroll 16
  for (int k = 0; k < width; ++k) __builtin_memcpy(y + k * y_step, &a[k], sizeof(Row));
}

// y[i, j] = x[j, i] for i < rows, j < columns, which are multiples of width up to what is left over; gives the first row
// that is.
template <int width, class T>
static inline int64_t transposed_rows(int64_t first, int64_t rows, int64_t columns, const T* x, int64_t x_step, T* y,
                                      int64_t y_step) {
  const int64_t whole = columns / width * width;
  int64_t i = first;
  for (; i + width <= rows; i += width) {
    for (int64_t j = 0; j < whole; j += width)
      transposed_block<width>(x + j * x_step + i, x_step, y + i * y_step + j, y_step);
    for (int64_t k = i; k < i + width; ++k)
      for (int64_t j = whole; j < columns; ++j) y[k * y_step + j] = x[j * x_step + k];
  }
  return i;
}

// y[i, j] = x[j, i] for i < rows, j < columns; steps are elements from row to row. Blocks are as wide as a line of the cache
// where that is 16 elements at most: lines that are touched twice would be fetched twice where their distance is a power of 2.
template <class T>
static inline void transposed(int64_t rows, int64_t columns, const T* x, int64_t x_step, T* y, int64_t y_step) {
  int64_t i = 0;
  if (sizeof(T) == 4) i = transposed_rows<16>(i, rows, columns, x, x_step, y, y_step);
  i = transposed_rows<8>(i, rows, columns, x, x_step, y, y_step);
  for (; i < rows; ++i)
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
