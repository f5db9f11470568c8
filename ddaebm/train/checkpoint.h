#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "ddaebm/data/source.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/train/flat.h"
#include "ddaebm/train/graph.h"

namespace ddaebm {

// A run's folder: config.toml, metrics.jsonl, checkpoint-ITERATION.safetensors, best.json,
// evaluation.json, density.png (of 2-D data) or samples.png (of images), report.html;
// divergences.jsonl after a divergence; ood.json, ood.png, threshold.json and usual.safetensors
// where they were asked for.
struct RunFolder {
  std::filesystem::path path;

  std::filesystem::path config() const { return path / "config.toml"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path evaluation() const { return path / "evaluation.json"; }
  std::filesystem::path report() const { return path / "report.html"; }
  std::filesystem::path divergences() const { return path / "divergences.jsonl"; }
  std::filesystem::path checkpoint(int64_t iteration) const;
  // Iterations of the checkpoints that are there, ascending.
  std::vector<int64_t> checkpoints() const;

  // The evaluation that was best so far, by the number that `metric` names; lower is better.
  struct Best {
    int64_t iteration = 0;
    std::string metric;
    double value = 0;
  };
  std::optional<Best> best() const;
  void set_best(const Best& best) const;
};

// What a checkpoint holds besides its tensors.
struct CheckpointFacts {
  std::string method;
  int64_t iteration = 0;             // that are done
  std::vector<std::string> missing;  // networks that were never trained (imported runs)
  double rate = 1;                   // of the settings' step size, after rollbacks
  int64_t rollbacks = 0;
  int64_t rolled_back = -1;  // the iteration that the last of them led to
  std::string data;          // what the data were; empty: not known
};

// Everything a run needs to go on: tensors, the next iteration, the data's units. Random numbers
// are a function of seed and iteration, so they need no state. Older checkpoints are removed, but
// for the newest `keep` and the best.
void save_checkpoint(const RunFolder& folder, const CheckpointFacts& facts,
                     const std::vector<NamedTensor>& state, const Units& units, int64_t keep);

// A checkpoint that was read, and is whole.
class Checkpoint {
 public:
  // An Error where it is damaged, another program's, or of a later format than this program knows.
  explicit Checkpoint(const std::filesystem::path& path);
  // The newest of a run that is whole; each that is not is told to `damaged`. Nothing where there
  // is no checkpoint; an Error where all are damaged, or one is of a later format.
  using Damaged = std::function<void(const std::filesystem::path& path, const std::string& why)>;
  static std::optional<Checkpoint> newest(const RunFolder& folder, const Damaged& damaged);

  const CheckpointFacts& facts() const { return facts_; }
  Units units() const;
  // Copies its tensors into those of `state`, matched by name, and of `units`. An Error where one
  // is missing or of another shape, or the method is another; then nothing is changed.
  void copy_to(const std::string& method, const std::vector<NamedTensor>& state,
               Units& units) const;

 private:
  torch::Tensor tensor(const std::string& name) const;

  std::string path_;
  Safetensors file_;
  CheckpointFacts facts_;
};

// Saves beside the training, which waits for a copy in the device's own memory and no more.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(torch::Device device) : lane_(device) {}
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // As save_checkpoint, in a thread of its own. Waits for the one before.
  void save(const RunFolder& folder, const CheckpointFacts& facts,
            const std::vector<NamedTensor>& state, const Units& units, int64_t keep);
  // Until the last is on disk. Throws what went wrong with it.
  void wait();

 private:
  Lane lane_;
  std::future<void> under_way_;
};

}  // namespace ddaebm
