#pragma once

#include <memory>

#include "ddaebm/data/source.h"

namespace ddaebm {

// Grey levels 0..255 and uniform noise u in [0, 1) of the same shape to logits: levels / 255 +
// (u - 1/2) / 256, held within .001 of 0 and 1.
torch::Tensor to_logits(const torch::Tensor& levels, const torch::Tensor& u);

// Images as vectors of logits, float64 [n, C * H * W], with fresh noise at each draw, as flows of
// MNIST are trained. A share of the training images, config.validation, is kept to choose by.
std::unique_ptr<DataSource> open_logit_source(const DataConfig& config, torch::Device device,
                                              const ReadHooks& hooks);

}  // namespace ddaebm
