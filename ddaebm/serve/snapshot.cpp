#include "ddaebm/serve/snapshot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "ddaebm/data/images.h"
#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/metrics/ranking.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/ood.h"

namespace ddaebm::serve {
namespace {

constexpr double kFalseAlarm = 0.01;
constexpr int64_t kRows = 10000;
constexpr int64_t kImages = 1000;  // their networks are slow without a GPU
constexpr int64_t kSide = 96;
constexpr int64_t kShown = 4000;  // points that the landscape has to show

RunSettings read_run(const std::filesystem::path& run) {
  const RunFolder folder{run};
  if (!std::filesystem::exists(folder.config())) {
    fail("{}: not a run folder (it has no config.toml)", run.string());
  }
  return RunSettings(ConfigFile::parse(read_file(folder.config()), folder.config().string()));
}

torch::Tensor training_data(const DataConfig& config, int64_t count) {
  const auto source = open_data(config, torch::kCPU);
  if (source->event().size() == 3) {
    return scaled(source->training_images(count > 0 ? count : kImages));
  }
  Random random(torch::kCPU, 0, Random::Generator::own);
  const auto rows = source->draw(count > 0 ? count : kRows, random);
  // Draws from a file repeat; each row counts once.
  return std::get<0>(torch::unique_dim(rows.to(torch::kDouble), 0));
}

}  // namespace

Reference::Reference(std::vector<double> training_scores) : scores_(std::move(training_scores)) {
  std::erase_if(scores_, [](double score) { return std::isnan(score); });
  std::sort(scores_.begin(), scores_.end());
}

double Reference::p_value(double score) const {
  if (scores_.empty() || std::isnan(score)) return std::numeric_limits<double>::quiet_NaN();
  const auto not_above = std::upper_bound(scores_.begin(), scores_.end(), score) - scores_.begin();
  return static_cast<double>(1 + not_above) / static_cast<double>(1 + scores_.size());
}

SnapshotMaker::SnapshotMaker(std::filesystem::path run, torch::Device device, int64_t count,
                             std::function<void(const std::string&)> warn)
    : run_(std::move(run)),
      device_(device),
      count_(count),
      warn_(std::move(warn)),
      settings_(read_run(run_)) {}

torch::Tensor Snapshot::scores(const torch::Tensor& rows) {
  const auto log_densities = model.log_density(rows);
  if (!threshold.profile) return log_densities.unsqueeze(1);
  const auto usual = threshold.profile->usual.scores(energy_profiles(model, rows));
  return torch::stack({log_densities, torch::tensor(usual, torch::kDouble)}, 1);
}

int64_t SnapshotMaker::newest() const {
  const auto there = RunFolder{run_}.checkpoints();
  return there.empty() ? -1 : there.back();
}

std::shared_ptr<Snapshot> SnapshotMaker::make() {
  const int64_t iteration = newest();
  std::shared_ptr<Snapshot> made;
  {
    const std::lock_guard lock(drawing);
    made = std::make_shared<Snapshot>(Snapshot{Model::load(run_, device_), iteration});
  }
  // A run that goes on may have written another meanwhile.
  if (newest() != iteration) return make();
  made->reference = reference_of(made->model, iteration);
  const auto& scores = made->reference.scores();
  made->threshold = {scores.empty() ? std::numeric_limits<double>::quiet_NaN()
                                    : false_alarm_threshold(scores, kFalseAlarm),
                     kFalseAlarm, iteration};
  try {
    if (const auto stored = read_threshold(run_)) {
      made->threshold = *stored;
      made->stored_threshold = true;
    }
  } catch (const Error& error) {
    warn_(fmt::format("{}; until then the threshold comes from the training scores", error.what()));
  }
  if (made->model.event() == std::vector<int64_t>{2}) draw_landscape(*made);
  return made;
}

Reference SnapshotMaker::reference_of(Model& model, int64_t iteration) {
  const auto file = run_ / "training_scores.safetensors";
  const std::map<std::string, std::string> facts = {{"format", "ddaebm training scores 1"},
                                                    {"iteration", std::to_string(iteration)},
                                                    {"count", std::to_string(count_)}};
  if (std::filesystem::exists(file)) {
    try {
      const auto kept = read_safetensors(file);
      const auto scores = kept.tensors.find("scores");
      if (kept.metadata == facts && scores != kept.tensors.end()) {
        return Reference(numbers_of(scores->second.to(torch::kDouble).flatten()));
      }
    } catch (const Error&) {
      // Written anew below.
    }
  }
  if (no_training_data_) return Reference();
  try {
    if (!training_.defined()) training_ = training_data(settings_.data, count_);
    const auto scores = model.log_density(training_);
    try {
      write_safetensors(file, {{{"scores", scores}}, facts});
    } catch (const Error&) {
      // A folder that is read only: they are computed again at the next start.
    }
    return Reference(numbers_of(scores));
  } catch (const Error& error) {
    no_training_data_ = true;
    warn_(fmt::format("no p-values, as the training data cannot be read: {}", error.what()));
    return Reference();
  }
}

void SnapshotMaker::draw_landscape(Snapshot& snapshot) {
  Model& model = snapshot.model;
  // Where the scores were kept the data were not read; samples lie in nearly the same place.
  torch::Tensor points;
  if (training_.defined()) {
    points = training_;
  } else {
    const std::lock_guard lock(drawing);
    points = model.sample(kShown, 0);
  }
  const auto window_of = [&](int64_t column) {
    const auto sorted = std::get<0>(points.select(1, column).sort());
    const int64_t edge = sorted.size(0) / 500;
    const double low = sorted[edge].item<double>();
    const double high = sorted[sorted.size(0) - 1 - edge].item<double>();
    const double margin = 0.18 * std::max(high - low, 1e-6);
    return Window{low - margin, high + margin};
  };
  snapshot.x_window = window_of(0);
  snapshot.y_window = window_of(1);
  const auto centres = [](const Window& window) {
    const double cell = (window.high - window.low) / kSide;
    return torch::arange(kSide, torch::kDouble) * cell + (window.low + cell / 2);
  };
  const auto x = centres(snapshot.x_window).view({1, kSide}).expand({kSide, kSide});
  const auto y = centres(snapshot.y_window).view({kSide, 1}).expand({kSide, kSide});
  const auto grid = torch::stack({x, y}, 2).view({kSide * kSide, 2});
  std::vector<torch::Tensor> maps;
  for (int64_t t = 0; t < model.times(); ++t) maps.push_back(model.log_density_at(grid, t));
  const auto all = torch::stack(maps).view({model.times(), kSide, kSide});
  snapshot.landscape = format_npy("landscape", all.to(torch::kFloat));
}

}  // namespace ddaebm::serve
