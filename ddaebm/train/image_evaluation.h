#pragma once

#include "ddaebm/train/evaluation.h"

namespace ddaebm {

// Images as bytes: [-1, 1] -> uint8.
torch::Tensor to_bytes(const torch::Tensor& images);

// The part of `evaluate` for images.
Evaluation evaluate_images(Model& model, DataSource& source, const DataConfig& data,
                           const EvaluationOptions& options);

}  // namespace ddaebm
