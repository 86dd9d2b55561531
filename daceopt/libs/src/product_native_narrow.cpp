// Products of tiles of bfloat16 in C++ alone.
#include "daceopt/narrow_product.h"

DACEOPT_NARROW_PRODUCTS(daceopt::product_widened)
