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
DOP_UNARY(DOP_VECTOR_2_22, exp)
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
// without their vector variants, which are not exact at powers of the base or lose signs of zero
DOP_UNARY(, exp2)
DOP_UNARY(, log2)
DOP_UNARY(, log10)
DOP_UNARY(, erfc)
DOP_BINARY(, atan2)
DOP_BINARY(, hypot)
DOP_BINARY(, nextafter)
int omp_get_max_threads(void) noexcept;
int omp_get_thread_num(void) noexcept;
}

#define DOP static inline __attribute__((always_inline))
#define DOP_INLINE inline
#define DOP_MEMBER static
#ifdef __FLT16_MAX__
#define DOP_HALF _Float16  // converts in one vector instruction
#endif

namespace dop {

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
