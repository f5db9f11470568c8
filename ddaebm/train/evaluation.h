#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "ddaebm/data/source.h"
#include "ddaebm/train/model.h"

namespace ddaebm {

// What a model is worth on its data.
struct Evaluation {
  // In the order in which they are shown. Known distributions: kl, js, hq and modes where it has
  // modes, mmd; files: mmd and mean scores of held-out rows and of samples.
  std::vector<std::pair<std::string, double>> numbers;
  torch::Tensor picture;  // density beside data beside samples; undefined unless the data is 2-D
};

// kl: KL(data || softmax E) over 400 x 400 points of [-4, 4]^2. js: Jensen-Shannon divergence of
// `samples` generated points and the data on 100 x 100 cells. hq: share of points within four
// standard deviations of a mode.
Evaluation evaluate(Model& model, DataSource& source, uint64_t seed, int64_t samples = 100000);

}  // namespace ddaebm
