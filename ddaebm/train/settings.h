#pragma once

#include <memory>
#include <string>

#include "ddaebm/config.h"
#include "ddaebm/data/source.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {

enum class OnDivergence { stop, rollback };

// Settings of the loop; `visit` says what each means.
struct TrainConfig {
  int64_t iterations = 100000;
  int64_t batch = 200;
  int64_t micro_batch = 0;
  OptimizerConfig optimizer;
  int64_t log_every = 100;
  int64_t evaluate_every = 10000;
  int64_t evaluation_samples = 100000;
  int64_t checkpoint_every = 5000;
  int64_t keep = 2;
  double divergence_limit = 1e8;
  bool tensorboard = true;
  OnDivergence on_divergence = OnDivergence::stop;
  double rollback_rate = 0.5;
  int64_t rollbacks = 3;
  bool tf32 = false;
  bool float64 = false;

  void visit(Fields& f) {
    f("iterations", iterations, at_least(1), "how many times both players are updated");
    f("batch", batch, at_least(2), "data an iteration");
    f("micro_batch", micro_batch, at_least(0),
      "data that go through the networks at once, to save memory; 0: all");
    optimizer.visit(f);
    f("log_every", log_every, at_least(1), "iterations between lines of metrics.jsonl");
    f("evaluate_every", evaluate_every, at_least(0),
      "iterations between evaluations; 0: at the end");
    f("evaluation_samples", evaluation_samples, at_least(1000), "samples an evaluation draws");
    f("checkpoint_every", checkpoint_every, at_least(1), "iterations between checkpoints");
    f("keep", keep, at_least(1), "how many checkpoints stay, besides the best");
    f("divergence_limit", divergence_limit, more_than(0),
      "a loss larger than this is a divergence, as a NaN is; seen within log_every iterations");
    f("on_divergence", on_divergence, {"stop", "rollback"},
      "rollback: go on from the last checkpoint with a smaller step size");
    f("rollback_rate", rollback_rate, Bounds{.low = 0, .high = 1, .low_is_allowed = false},
      "rollback: the step size as a share of the one before");
    f("rollbacks", rollbacks, at_least(1), "rollback: how many times before the run stops");
    f("tensorboard", tensorboard,
      "event files for TensorBoard beside metrics.jsonl: curves, pictures, histograms of scores");
    f("tf32", tf32,
      "vectors on a GPU: matrix products of training rounded to TF32, evaluation never");
    f("float64", float64, "everything in double precision, to compare runs by");
  }
};

enum class BatchStatistics { synchronised, local };

// Where several processes train together; one alone heeds none of it.
struct RanksConfig {
  BatchStatistics batch_statistics = BatchStatistics::synchronised;
  bool joined_draws = true;
  int64_t verify_every = 1000;

  void visit(Fields& f) {
    f("batch_statistics", batch_statistics, {"synchronised", "local"},
      "batch norms: over the joined batch, or over each rank's part of it");
    f("joined_draws", joined_draws,
      "each rank draws the joined batch's noise and takes its part, so that the number of ranks "
      "does not matter; false: each its own, cheaper for hundreds of ranks");
    f("verify_every", verify_every, at_least(1),
      "iterations between checks that all ranks have the same weights");
  }
};

// All there is to a run, read from a settings file. A method brings sections of its own.
struct RunSettings {
  explicit RunSettings(const ConfigFile& file);
  Fields fields();
  std::string to_toml();
  RunSettings copy();

  std::string method = "ddaebm";
  int64_t seed = 0;
  DataConfig data;
  TrainConfig train;
  RanksConfig ranks;
  std::unique_ptr<MethodSettings> method_settings;
};

}  // namespace ddaebm
