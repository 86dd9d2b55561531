// Products by a factor b that is kept from iteration to iteration of a loop: what generated code calls.
#pragma once
#include "daceopt/contraction.h"
#include "daceopt/weights.h"

namespace daceopt {

// y = activation(alpha a b + bias + residual) for one product (no batch) of float or double; rows of y have unit stride.
// `kept` has b in panels, and asks for them in the first iteration. Reports to `status`; never throws.
template <typename T>
void contraction_panels(Product<T> product, WeightMemory* kept);

// A product of bfloat16 factors; `kept`, where there is some, has b as oneDNN's kernel wants it.
void contraction_onednn(const NarrowProduct& product, WeightMemory* kept);

}  // namespace daceopt
