// Matrix products of float32 by oneDNN: for programs that run where torch, and the MKL inside it, is not.
#include "daceopt/onednn_blas.h"

namespace daceopt {

void contraction_onednn(const Product<float>& product) { contract<OneDnn, float>(product); }

}  // namespace daceopt
