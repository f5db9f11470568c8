#pragma once

#include <filesystem>

#include "ddaebm/train/model.h"

namespace ddaebm {

// What an exported file can do.
struct Exported {
  bool sample = false;     // else the run has no generator, or its samples need gradients
  double score_error = 0;  // greatest difference to Model, as a share of 1 + |value|
  double sample_error = 0;
};

// Writes a model as a TorchScript module, for programs that have PyTorch and not this library:
//   score(x), also forward(x)  x [N, ...] -> [N] float64, as Model::log_density
//   generate(noise...)         samples of given standard normal noise, each [N, ...]
//   sample(n)                  n samples [n, ...] float32, by PyTorch's random numbers
// It runs where the model is. What was written is read back and compared with the model; an Error
// where they differ by more than 1e-5, or where a score takes gradients.
Exported export_torchscript(Model& model, const std::filesystem::path& file);

}  // namespace ddaebm
