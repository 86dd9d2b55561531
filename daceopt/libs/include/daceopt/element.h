// Element types of operands whose type is known at run time.
#pragma once
#include <cstdint>
#include <cstring>

namespace daceopt {

enum class Element { kFloat, kBfloat16, kUint8, kInt8 };

constexpr int64_t bytes_of(Element type) { return type == Element::kFloat ? 4 : type == Element::kBfloat16 ? 2 : 1; }

inline float from_bfloat16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
}

// To the nearest, ties to even; NaN stays NaN.
inline uint16_t to_bfloat16(float value) {
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    const uint32_t rounded = (wide + 0x7FFFu + ((wide >> 16) & 1u)) >> 16;
    return static_cast<uint16_t>(value != value ? 0x7FC0u : rounded);
}

// `count` numbers of bfloat16 as floats, and back.
inline void widen(const void* from, float* to, int64_t count) {
    const auto* bits = static_cast<const uint16_t*>(from);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = from_bfloat16(bits[i]);
}

inline void narrow(const float* from, void* to, int64_t count) {
    auto* bits = static_cast<uint16_t*>(to);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) bits[i] = to_bfloat16(from[i]);
}

}  // namespace daceopt
