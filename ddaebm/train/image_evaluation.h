#pragma once

#include "ddaebm/train/evaluation.h"

namespace ddaebm {

// How the file ends that a run's folder keeps of the features of its training images.
inline constexpr const char* kReferenceStatistics = "_reference.npz";

// The part of `evaluate` for images.
Evaluation evaluate_images(Model& model, DataSource& source, const DataConfig& data,
                           const EvaluationOptions& options);

}  // namespace ddaebm
