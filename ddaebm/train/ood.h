#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/metrics/ranking.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/profile.h"

// Whether a model's score tells data like its own (inside) from other data (outside).
namespace ddaebm {

// A set's scores. Training gives clean data a little noise; `noised` are the scores of data with
// that noise, empty where the method adds none.
struct ScoredSet {
  std::string name;
  std::vector<double> clean, noised;
  std::vector<double> profile;  // how usual the energies of all times are; may be empty
};
// Scores data by a model; `name` stands in what is shown of them. `usual` may be null.
ScoredSet score_set(Model& model, const std::string& name, const torch::Tensor& data, uint64_t seed,
                    const UsualProfiles* usual = nullptr);

// How well a set outside is told from the one inside.
struct OodRow {
  std::string name;
  int64_t count = 0;
  Separation clean;
  std::optional<Separation> noised;
  // By how near a score is to the median of those inside: a set outside may score too high as well.
  Separation typical;
  std::optional<Separation> profile;
};
// One row for each set outside.
std::vector<OodRow> tell_apart(const ScoredSet& inside, const std::vector<ScoredSet>& outside,
                               const Bootstrap& bootstrap);

// What a run answers with: log-densities below `score` are `out`, unless there is a `profile`. Kept
// as threshold.json in its folder.
struct Threshold {
  double score = 0.0;
  double false_alarm = 0.0;  // the share of data inside that it calls `out`, at most
  int64_t iteration = 0;     // of the checkpoint that gave the scores
  std::string inside = {};
  // Where there is one, it answers in place of the log-density: data whose profiles score less by
  // what is usual are `out`. That is kept beside it, as usual.safetensors.
  struct OfProfiles {
    double score;
    UsualProfiles usual;
  };
  std::optional<OfProfiles> profile = {};
};
// By which data [N, ...] are `in` or `out`.
struct Answers {
  std::vector<double> log_density;
  std::vector<double> profile;  // how usual; empty where the threshold has none of it
  std::vector<bool> in;         // what is not a number is not
};
Answers answer(Model& model, const torch::Tensor& data, const Threshold& threshold);

// Keeps it in the run's folder.
void write_threshold(const std::filesystem::path& run, const Threshold& threshold);
// Nothing where none is kept; an Error where the run was trained on since.
std::optional<Threshold> read_threshold(const std::filesystem::path& run);

}  // namespace ddaebm
