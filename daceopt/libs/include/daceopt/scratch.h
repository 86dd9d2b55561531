// Memory that a thread keeps from call to call: all programs of a process work in the same, since no two calls of a thread
// need it at once. Compiled once, in libs/src/scratch.cpp.
#pragma once
#include <cstddef>

namespace daceopt::detail {

// What one call may have at the same time.
enum class Purpose : int {
    kCall,      // copies of operands, and what a kernel of oneDNN works in
    kResidual,  // a residual that stood where the result will
    kShift,     // what is added to each channel
    kSigned,    // weights less 128
    kTurned,    // factors whose rows and columns change places
    kRows,      // rows of a batch, one after the other
    kResult,    // a result that is turned round afterwards
    kLeftFactor, kRightFactor,  // times powers of two
    kCount
};

// So many bytes, with whatever was there before. Throws std::bad_alloc.
void* scratch(Purpose purpose, size_t bytes);

// Gives back what this library keeps for this thread.
void release_scratch();

}  // namespace daceopt::detail
