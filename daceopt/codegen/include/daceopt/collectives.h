// Reductions across the lanes of a warp. Every lane brings a value that starts from the identity, and gets the whole.
#ifndef DACEOPT_COLLECTIVES_H
#define DACEOPT_COLLECTIVES_H

namespace dop {

struct Sum { template <class T> DOP_MEMBER T join(T a, T b) { return T(a + b); } };
struct Prod { template <class T> DOP_MEMBER T join(T a, T b) { return T(a * b); } };
struct Max { template <class T> DOP_MEMBER T join(T a, T b) { return maximum(a, b); } };
struct Min { template <class T> DOP_MEMBER T join(T a, T b) { return minimum(a, b); } };

// The value of the lane whose number differs in `bit`, of any type of up to 8 bytes.
template <class T> DOP_DEVICE T exchanged(T value, int bit) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  if (sizeof(T) <= 4) bits = __shfl_xor_sync(0xFFFFFFFFu, unsigned(bits), bit);
  else bits = __shfl_xor_sync(0xFFFFFFFFu, bits, bit);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// All lanes get the same bits: the order of two operands changes neither a sum nor a product.
template <class Operation, class T> DOP_DEVICE T across_warp(T value) {
  for (int bit = 16; bit > 0; bit >>= 1) value = Operation::join(value, exchanged(value, bit));
  return value;
}

}  // namespace dop

#endif  // DACEOPT_COLLECTIVES_H
