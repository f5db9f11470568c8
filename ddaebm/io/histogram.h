#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// Numbers whose distribution is to be seen.
struct NumberSet {
  std::string name;
  std::vector<double> values;
};

// A float64 tensor on the CPU as such.
std::vector<double> numbers_of(const torch::Tensor& scores);

// Histograms of several sets over one axis, as a picture with a legend and ticks. The first set is
// filled, the others are lines; heights are shares of each set. The axis holds the middle 99 % of
// every set, the outermost bins what lies beyond; NaN is left out.
torch::Tensor histograms(const std::vector<NumberSet>& sets);

}  // namespace ddaebm
