#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ddaebm/data/source.h"
#include "ddaebm/train/flat.h"

namespace ddaebm {

// A run's folder: config.toml, metrics.jsonl, checkpoint-ITERATION.safetensors, evaluation.json,
// density.png (of 2-D data) or samples.png (of images), report.html; ood.json, ood.png and
// threshold.json where they were asked for.
struct RunFolder {
  std::filesystem::path path;

  std::filesystem::path config() const { return path / "config.toml"; }
  std::filesystem::path metrics() const { return path / "metrics.jsonl"; }
  std::filesystem::path evaluation() const { return path / "evaluation.json"; }
  std::filesystem::path report() const { return path / "report.html"; }
  std::filesystem::path checkpoint(int64_t iteration) const;
  // Iterations of the checkpoints that are there, ascending.
  std::vector<int64_t> checkpoints() const;
};

// Everything a run needs to go on: tensors in place, the next iteration, the data's units. Random
// numbers are a function of seed and iteration, so they need no state. `missing` names networks
// whose weights were never trained (imported runs).
void save_checkpoint(const RunFolder& folder, int64_t iteration, const std::string& method,
                     const std::vector<NamedTensor>& state, const Units& units, int64_t keep,
                     const std::vector<std::string>& missing = {});

// What can be known of the newest checkpoint without its networks; an Error where there is none.
struct CheckpointFacts {
  Units units;
  std::vector<std::string> missing;
};
CheckpointFacts read_newest_facts(const RunFolder& folder);

// Copies the newest checkpoint's tensors into `state`, matched by name. Returns its iteration, or
// nothing where there is no checkpoint. A truncated or foreign file, a missing tensor or one of
// another shape is an Error.
std::optional<int64_t> load_checkpoint(const RunFolder& folder, const std::string& method,
                                       const std::vector<NamedTensor>& state, Units& units);

}  // namespace ddaebm
