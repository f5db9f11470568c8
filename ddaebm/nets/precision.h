#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// How far a precision of the image networks is from float64 on a small energy: relative errors, in
// the root of the mean square, of E, of its gradient in x, and of the gradient in the parameters of
// that gradient's square (what the penalty needs).
struct PrecisionError {
  std::string precision;
  double energy = 0.0, gradient = 0.0, second = 0.0;
};
std::vector<PrecisionError> precision_errors(torch::Device device);

}  // namespace ddaebm
