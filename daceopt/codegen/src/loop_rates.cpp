// Loops as kernels have them, each of one kind of work; codegen/cpu/loop_rates.py times them. The headers of kernels
// come first.
static volatile int64_t length = 16;  // that the compiler does not know
#define DACEOPT_LOOP(name, ...)                                                                                  \
  extern "C" __attribute__((visibility("default"))) void daceopt_loop_##name(                                    \
      const float* __restrict__ x, float* __restrict__ y, double* __restrict__ sums, int64_t n, int64_t times) { \
    for (; times > 0; --times) {                                                                                 \
      asm volatile("" ::: "memory");                                                                             \
      __VA_ARGS__                                                                                                \
    }                                                                                                            \
  }
#define DACEOPT_VALUE(name, value) \
  DACEOPT_LOOP(name, _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) { const float v = x[i]; y[i] = value; })

DACEOPT_VALUE(copy, v)
DACEOPT_VALUE(polynomial, v * (v * (v * (v * (v * (v * (v * (v + 8.0f) + 7.0f) + 6.0f) + 5.0f) + 4.0f) + 3.0f) + 2.0f) + 1.0f)
DACEOPT_VALUE(multiplication, dop::fma(v, dop::fma(v, dop::fma(v, dop::fma(v, dop::fma(v, dop::fma(v, dop::fma(v, dop::fma(
    v, v, 8.0f), 7.0f), 6.0f), 5.0f), 4.0f), 3.0f), 2.0f), 1.0f))
DACEOPT_VALUE(exp, dop::exp(v))
DACEOPT_VALUE(erf, dop::erf(v))
DACEOPT_VALUE(tanh, tanhf(v))
DACEOPT_VALUE(log, logf(v))
DACEOPT_VALUE(power, powf(v, 1.7f))
DACEOPT_VALUE(sine, sinf(v))
DACEOPT_VALUE(division, 1.0f / v)
// a line of the caches apart, as in a transposition
DACEOPT_LOOP(strided, _Pragma("omp simd") for (int64_t i = 0; i < n / 16; ++i) y[i] = x[16 * i] + 1.0f;)
DACEOPT_LOOP(wide, _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) sums[i] += double(x[i]);)
// each needs the one before it
DACEOPT_LOOP(scalar, float v = 1.0f; for (int64_t i = 0; i < n; ++i) { v = x[i] + v * 0.5f; y[i] = v; })
// sixteen at a time
DACEOPT_LOOP(entry, const int64_t short_loop = length; for (int64_t k = 0; k < n / 16; ++k) {
  _Pragma("omp simd") for (int64_t i = 0; i < short_loop; ++i) y[16 * k + i] = x[16 * k + i];
})
// which end with a sum of the lanes
DACEOPT_LOOP(lanes, for (int64_t k = 0; k < n / 16; ++k) {
  float v = 0.0f;
  _Pragma("omp simd reduction(+ : v)") for (int64_t i = 0; i < 16; ++i) v += x[16 * k + i];
  y[k] = v;
})

// Nanoseconds of a call of a kernel that is in no cache, nor are its operands: ``memory`` has what pushes them out.
extern "C" __attribute__((visibility("default"))) double daceopt_cold_call(
    const float* __restrict__ x, float* __restrict__ y, double* __restrict__ sums, volatile float* memory, int64_t n) {
  using Loop = void (*)(const float*, float*, double*, int64_t, int64_t);
  constexpr Loop loops[] = {daceopt_loop_exp, daceopt_loop_erf, daceopt_loop_wide, daceopt_loop_entry};
  double spent = 0;
  for (Loop loop : loops) {
    for (int64_t i = 0; i < n; i += 16) memory[i] = memory[i] + 1.0f;
    const auto start = std::chrono::steady_clock::now();
    loop(x, y, sums, 16, 1);
    spent += std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }
  return spent / (sizeof loops / sizeof *loops);
}
