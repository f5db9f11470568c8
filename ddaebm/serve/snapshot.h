#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/io/plot.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/ood.h"
#include "ddaebm/train/settings.h"

namespace ddaebm::serve {

// What scores of the training data say of a new one.
class Reference {
 public:
  Reference() = default;
  explicit Reference(std::vector<double> training_scores);
  // (1 + number of training scores that are not above it) / (1 + number of all): the chance that a
  // datum of the training set's kind scores as low. NaN where there are no training scores.
  double p_value(double score) const;
  // Training scores, ascending.
  const std::vector<double>& scores() const { return scores_; }

 private:
  std::vector<double> scores_;
};

// A model of one checkpoint and all that is answered with it.
struct Snapshot {
  Model model;
  int64_t iteration = 0;
  Reference reference = {};
  // What answers `in` or `out`. From `ddaebm ood --false-alarm` where that kept one for this
  // checkpoint (`stored`), else from the training scores.
  Threshold threshold = {};
  bool stored_threshold = false;
  // Of rows, [N, 1] float64 on the CPU: log-densities; [N, 2] where the threshold is one of
  // profiles: and how usual those are.
  torch::Tensor scores(const torch::Tensor& rows);
  // For 2-D models: log-densities float32 [times, side, side], rows from the bottom up, over the
  // window, as an .npy file.
  Window x_window = {}, y_window = {};
  std::string landscape = {};
};

// Makes snapshots of a run's newest checkpoint. It remembers the training data, so that later
// checkpoints are compared with the same.
class SnapshotMaker {
 public:
  // `count` training data are scored; 0: as many as suit the kind of data. Where the data are not
  // there, nor scores of them in the run folder, `warn` is told and there are no p-values.
  SnapshotMaker(std::filesystem::path run, torch::Device device, int64_t count,
                std::function<void(const std::string&)> warn);

  // Iteration of the newest checkpoint; -1 where there is none yet.
  int64_t newest() const;
  // Reads it. Training scores are kept in the run folder (training_scores.safetensors), where that
  // can be written to.
  std::shared_ptr<Snapshot> make();
  RunSettings& settings() { return settings_; }

  // Held while a model is built and by whoever draws samples: both use the device's one generator.
  std::mutex drawing;

 private:
  Reference reference_of(Model& model, int64_t iteration);
  void draw_landscape(Snapshot& snapshot);

  std::filesystem::path run_;
  torch::Device device_;
  int64_t count_;
  std::function<void(const std::string&)> warn_;
  RunSettings settings_;
  torch::Tensor training_;  // [N, ...], once they were needed
  bool no_training_data_ = false;
};

}  // namespace ddaebm::serve
