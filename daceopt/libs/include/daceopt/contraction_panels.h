// Products by a factor that is kept in panels: what generated code calls.
#pragma once
#include "daceopt/contraction.h"
#include "daceopt/weights.h"

namespace daceopt {

// y = activation(alpha a b + bias + residual) for one product (no batch) of float or double; rows of y have unit stride.
// `kept` has b in panels, and asks for them in the first iteration of a loop. Reports to `status`; never throws.
template <typename T>
void contraction_panels(Product<T> product, WeightMemory* kept);

}  // namespace daceopt
