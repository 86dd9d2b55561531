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

// Of floats.
inline float load(const void* data, Element type, int64_t index) {
    if (type == Element::kFloat) return static_cast<const float*>(data)[index];
    return from_bfloat16(static_cast<const uint16_t*>(data)[index]);
}

inline void store(void* data, Element type, int64_t index, float value) {
    if (type == Element::kFloat) static_cast<float*>(data)[index] = value;
    else static_cast<uint16_t*>(data)[index] = to_bfloat16(value);
}

}  // namespace daceopt
