// Algorithms by torch's operators, on arrays of any device that torch knows. Names, operands and parameters are those of
// the templates in daceopt/algorithms, and so are results, but for the places of equal elements: these are torch's.
#pragma once
#include "daceopt/torch_device.h"

namespace daceopt {

using DeviceArrays = std::vector<DeviceArray>;
using Parameters = std::vector<int64_t>;

void device_bitcast(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
void device_cumulate(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
// Sums and products of numbers that are not finite may be NaN where the template's are not.
void device_product_gradient(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
void device_ranked_index(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
void device_running_extremum(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
// A position out of range is reported; which of several updates replaces a row that they name is not said.
void device_scatter_rows(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
void device_searchsorted(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);
void device_top_indices(Where where, const DeviceArrays& in, const DeviceArrays& out, const Parameters& parameters);

}  // namespace daceopt
