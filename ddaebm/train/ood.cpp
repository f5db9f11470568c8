#include "ddaebm/train/ood.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/io/sha256.h"
#include "ddaebm/train/checkpoint.h"

namespace ddaebm {
namespace {

std::filesystem::path threshold_file(const std::filesystem::path& run) {
  return run / "threshold.json";
}

std::filesystem::path usual_file(const std::filesystem::path& run) {
  return run / "usual.safetensors";
}

std::string digest(const std::filesystem::path& file) { return hex(sha256(read_file(file))); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<double> nearness(std::vector<double> scores, double centre) {
  for (double& score : scores) score = -std::abs(score - centre);
  return scores;
}

}  // namespace

ScoredSet score_set(Model& model, const std::string& name, const torch::Tensor& data, uint64_t seed,
                    const UsualProfiles* usual) {
  ScoredSet set{name, numbers_of(model.log_density(data)), {}, {}};
  const auto noised = model.diffused(data, 0, seed);
  if (!torch::equal(noised, data)) set.noised = numbers_of(model.log_density(noised));
  if (usual != nullptr) set.profile = usual->scores(energy_profiles(model, data));
  return set;
}

std::vector<OodRow> tell_apart(const ScoredSet& inside, const std::vector<ScoredSet>& outside,
                               const Bootstrap& bootstrap) {
  std::vector<OodRow> rows;
  for (const auto& set : outside) {
    try {
      OodRow row{set.name,
                 static_cast<int64_t>(set.clean.size()),
                 separation(inside.clean, set.clean, bootstrap),
                 {},
                 {},
                 {}};
      if (!inside.noised.empty()) row.noised = separation(inside.noised, set.noised, bootstrap);
      const double centre = median(inside.clean);
      row.typical =
          separation(nearness(inside.clean, centre), nearness(set.clean, centre), bootstrap);
      if (!inside.profile.empty()) {
        row.profile = separation(inside.profile, set.profile, bootstrap);
      }
      rows.push_back(row);
    } catch (const Error& error) {
      fail("{} inside, {} outside: {}", inside.name, set.name, error.what());
    }
  }
  return rows;
}

Answers answer(Model& model, const torch::Tensor& data, const Threshold& threshold) {
  Answers found{numbers_of(model.log_density(data)), {}, {}};
  const auto& profile = threshold.profile;
  if (profile && !found.log_density.empty()) {
    found.profile = profile->usual.scores(energy_profiles(model, data));
  }
  for (const double score : profile ? found.profile : found.log_density) {
    found.in.push_back(score >= (profile ? profile->score : threshold.score));
  }
  return found;
}

void write_threshold(const std::filesystem::path& run, const Threshold& threshold) {
  nlohmann::ordered_json json = {{"score", threshold.score},
                                 {"false_alarm", threshold.false_alarm},
                                 {"iteration", threshold.iteration},
                                 {"in", threshold.inside}};
  if (threshold.profile) {
    threshold.profile->usual.save(usual_file(run));
    json["profile"] = threshold.profile->score;
    json["usual"] = digest(usual_file(run));
  }
  write_file(threshold_file(run), json.dump(2) + "\n");
}

std::optional<Threshold> read_threshold(const std::filesystem::path& run) {
  const auto file = threshold_file(run);
  if (!std::filesystem::exists(file)) return {};
  Threshold found;
  try {
    const auto json = nlohmann::json::parse(read_file(file));
    found = {json.at("score"), json.at("false_alarm"), json.at("iteration"), json.at("in")};
    if (json.contains("profile")) {
      const auto usual = usual_file(run);
      if (digest(usual) != json.at("usual")) {
        fail(
            "{}: not the one that belongs to threshold.json; write both anew with `ddaebm ood "
            "--reference --false-alarm`",
            usual.string());
      }
      found.profile = {json.at("profile"), UsualProfiles::load(usual)};
    }
  } catch (const nlohmann::json::exception&) {
    fail("{}: not a threshold; write it anew with `ddaebm ood --false-alarm`, or remove it",
         file.string());
  }
  const auto checkpoints = RunFolder{run}.checkpoints();
  if (checkpoints.empty() || checkpoints.back() != found.iteration) {
    fail(
        "{}: of iteration {}, which is not the newest checkpoint's; write it anew with `ddaebm ood "
        "--false-alarm`, or remove it",
        file.string(), found.iteration);
  }
  return found;
}

}  // namespace ddaebm
