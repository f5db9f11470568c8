#pragma once

#include <atomic>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/train/settings.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm {

// One of those that are compared: what to train, under which name.
struct Contestant {
  std::string label;
  RunSettings settings;
};

// What this process trains of a comparison that several may work on.
enum class Portion {
  all,        // everything, one after the other
  unclaimed,  // what no other process has begun: it is one of several jobs
  rest,       // what the jobs have left
};

struct CompareOptions {
  std::filesystem::path folder;
  Portion portion = Portion::all;
  torch::Device device = torch::kCPU;
  int64_t seeds = 1;
  // How long each is trained: its iterations, or the minutes that they may take; neither: as its
  // settings say.
  int64_t iterations = 0;
  double minutes = 0;
};

struct ComparedRow {
  std::string label;
  std::vector<SeedNumber> numbers;
  std::vector<std::filesystem::path> runs;  // of the seeds that finished
  int64_t iterations = 0;
  std::vector<std::string> failures;  // what ended the other seeds
  const SeedNumber* find(const std::string& name) const;
};
struct Comparison {
  std::vector<ComparedRow> rows;
  bool finished = false;  // false: `stop` ended it
};

// Trains each with its settings' seed and those after it, into folder/LABEL/seed-K, and evaluates
// it. What is finished there is kept, what was begun goes on. Writes comparison.json, table.md and
// figure.svg: densities above samples. A job trains, and leaves the rest to the process that
// started it.
Comparison compare(std::vector<Contestant> contestants, const CompareOptions& options,
                   const std::atomic<int>& stop);

// Before jobs are started: an Error where what was begun does not fit; what jobs could not train
// before may be tried again; minutes become iterations while the machine is quiet. Returns how many
// contestants are left to train.
int64_t prepare_jobs(std::vector<Contestant>& contestants, const CompareOptions& options,
                     const std::atomic<int>& stop);

// How far jobs are: the share of a comparison that is trained, between 0 and 1, and the labels that
// are being trained.
struct CompareProgress {
  double done = 0.0;
  std::vector<std::string> training;
};
CompareProgress progress_of(const std::vector<Contestant>& contestants,
                            const CompareOptions& options);

// The comparison as a table in Markdown.
std::string table_of(const Comparison& comparison);

}  // namespace ddaebm
