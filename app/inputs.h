#pragma once

#include <cstdint>
#include <string>

#include "ddaebm/data/source.h"
#include "ddaebm/train/model.h"

namespace ddaebm::app {

struct InputOptions {
  std::string split = "test";  // of an image set that has both
  int64_t limit = 0;           // the first so many; 0: all
  int64_t draws = 10000;       // how many of a built-in distribution
  uint64_t seed = 0;           // of those
};

// What a user wants scored, as the model takes it: draws of a built-in distribution, images in
// [-1, 1] of the model's size or as logits, or rows of a table. `trained` are the data settings of
// the model's run: where image sets are, and how its own are cropped.
torch::Tensor read_inputs(const std::string& data, const Model& model, const DataConfig& trained,
                          const InputOptions& options);

// How many data a reference is of, unless more are asked for.
inline constexpr int64_t kMostLearnt = 10000;

// The first `most` of data that are like the model's own, to learn from what is usual: of an image
// set that has both, its train split.
torch::Tensor read_reference(const std::string& data, const Model& model, const DataConfig& trained,
                             uint64_t seed, int64_t most = kMostLearnt);

}  // namespace ddaebm::app
