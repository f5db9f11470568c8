#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {

struct TrainOptions {
  std::filesystem::path folder;
  torch::Device device = torch::kCPU;
  bool resume = false;
  bool quiet = false;
};

struct TrainResult {
  bool finished = false;                                // false: `stop` ended it
  std::vector<std::pair<std::string, double>> numbers;  // of the last evaluation
};

// Runs the whole training into a run folder. `stop`, once not zero, ends it after a checkpoint. A
// NaN or a runaway loss is an Error that names the loss and the iteration; the checkpoints from
// before stay. A folder that holds a run already is an Error unless it is resumed.
TrainResult train(RunSettings& settings, const TrainOptions& options, const std::atomic<int>& stop);

}  // namespace ddaebm
