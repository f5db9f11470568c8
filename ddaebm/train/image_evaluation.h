#pragma once

#include "ddaebm/train/evaluation.h"

namespace ddaebm {

// The part of `evaluate` for images.
Evaluation evaluate_images(Model& model, DataSource& source, const DataConfig& data,
                           const EvaluationOptions& options);

}  // namespace ddaebm
