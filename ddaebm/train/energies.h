#pragma once

#include <vector>

#include "ddaebm/io/histogram.h"
#include "ddaebm/train/model.h"

namespace ddaebm {

// What the paper shows of an energy: scores of data; of what the generator makes of them after one
// step of diffusion (of samples, where the method cannot); and of data with noise of deviation
// .01, .1 and .5 in the model's units. A score that is NaN is an Error.
std::vector<NumberSet> energy_sets(Model& model, const Units& units, const torch::Tensor& data,
                                   uint64_t seed);

}  // namespace ddaebm
