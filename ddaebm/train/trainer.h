#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "ddaebm/dist/launch.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {

// Where and how a run is trained; none of it changes what is learnt.
struct TrainOptions {
  std::filesystem::path folder;
  torch::Device device = torch::kCPU;
  bool resume = false;
  bool quiet = false;
  // Opens other data than the settings name, such as a program's own; may be empty.
  std::function<std::unique_ptr<DataSource>(torch::Device device)> open_source = nullptr;
  // Among the ranks of a launcher; nothing: this process alone.
  std::optional<Place> place = std::nullopt;
};

// How a training ended.
struct TrainResult {
  bool finished = false;                                // false: `stop` ended it
  std::vector<std::pair<std::string, double>> numbers;  // of the last evaluation
};

// Runs the whole training into a run folder, which it locks. `stop`, once not zero, ends it after a
// checkpoint. A NaN or a runaway loss is an Error that names the loss and the iteration, or a
// rollback, as the settings say; the checkpoints from before stay. A folder that holds a run
// already is an Error unless it is resumed. Of several ranks the first alone reads and writes the
// folder; they stop at the next line of metrics.jsonl.
TrainResult train(RunSettings& settings, const TrainOptions& options, const std::atomic<int>& stop);

// An Error where the folder's run has other settings than are wanted, but for those that do not
// touch what is computed.
void check_same_run(RunSettings& wanted, const RunFolder& folder);

// A number of an evaluation over several seeds; the deviation of one seed is zero.
struct SeedNumber {
  std::string name;
  double mean = 0.0, deviation = 0.0;
};
// Of each number that all of the seeds have: name -> values.
std::vector<SeedNumber> summary(const std::map<std::string, std::vector<double>>& values,
                                size_t seeds);

// What several seeds' last evaluations gave, of those that finished.
struct SeedsResult {
  bool finished = false;
  std::vector<std::string> failures;  // of seeds that had to stop, what `train` says of them
  std::vector<SeedNumber> numbers;
};

// Trains with the settings' seed and the `count` - 1 after it at once, each a run of its own in
// folder/seed-K, the same as if it were trained alone. On a GPU they run side by side, for which
// small networks leave room; so models of images are an Error. A seed that diverges does not stop
// the others. Writes folder/seeds.json.
SeedsResult train_seeds(RunSettings& settings, const TrainOptions& options, int64_t count,
                        const std::atomic<int>& stop);

}  // namespace ddaebm
