// The bits of one type read as another.
#pragma once
#include <cstdint>
#include <cstring>

namespace daceopt {

// parameters: number of elements.
template <typename From, typename To>
void bitcast(const From* x, To* y, const int64_t* parameters) {
    static_assert(sizeof(From) == sizeof(To), "types of one width");
    std::memcpy(y, x, parameters[0] * sizeof(From));
}

}  // namespace daceopt
