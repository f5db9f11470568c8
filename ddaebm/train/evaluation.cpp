#include "ddaebm/train/evaluation.h"

#include <algorithm>

#include "ddaebm/io/image.h"
#include "ddaebm/io/plot.h"
#include "ddaebm/metrics/grid.h"
#include "ddaebm/metrics/samples.h"
#include "ddaebm/train/image_evaluation.h"

namespace ddaebm {
namespace {

constexpr int64_t kMmdPoints = 4000;
constexpr int64_t kScored = 2000;
constexpr int64_t kScatterPoints = 10000;
constexpr int64_t kPanel = 400;  // pixels
constexpr int64_t kGrid = 8;     // columns and rows of images

// In the model's units, over a square around the origin that holds nearly all data.
torch::Tensor picture_of(Model& model, const Units& units, const torch::Tensor& data,
                         const torch::Tensor& samples) {
  const auto distance = std::get<0>(units.to_model(data).abs().amax(1).sort());
  const double reach = 1.15 * distance[(distance.size(0) - 1) * 999 / 1000].item<double>();
  const Window window{-reach, reach};
  const Grid grid{200, window.low, window.high};
  const auto log_p = grid_log_probabilities(
      [&](const torch::Tensor& x) { return model.log_density(units.to_data(x)); }, grid,
      torch::TensorOptions(torch::kDouble));
  const auto panel = [&](const torch::Tensor& points) {
    return scatter(units.to_model(points.slice(0, 0, kScatterPoints)), window, kPanel);
  };
  return beside(
      {heatmap(log_p.exp().view({grid.side, grid.side}), kPanel), panel(data), panel(samples)});
}

}  // namespace

Evaluation evaluate(Model& model, DataSource& source, const DataConfig& config,
                    const EvaluationOptions& options) {
  if (source.event().size() == 3) return evaluate_images(model, source, config, options);
  Random random(torch::kCPU, options.seed);
  random.restart(Random::kEvaluation, 0);
  const auto data = source.draw_held_out(options.samples, random).to(torch::kCPU);
  const auto generated = model.sample(options.samples, options.seed);
  const LogDensity log_density = [&](const torch::Tensor& x) { return model.log_density(x); };

  Evaluation out;
  const auto held_out_scores = model.log_density(data.slice(0, 0, kScored));
  const auto sample_scores = model.log_density(generated.slice(0, 0, kScored));
  out.scores = {{"held_out", numbers_of(held_out_scores)}, {"samples", numbers_of(sample_scores)}};
  if (const Toy* toy = source.toy()) {
    const LogDensity truth = [&](const torch::Tensor& x) { return toy->log_density(x); };
    const Grid fine;
    const Grid coarse{100, fine.low, fine.high};
    const torch::TensorOptions doubles(torch::kDouble);
    out.numbers.emplace_back("kl",
                             kl_divergence(grid_log_probabilities(truth, fine, doubles),
                                           grid_log_probabilities(log_density, fine, doubles)));
    out.numbers.emplace_back(
        "js", jensen_shannon(histogram(generated, coarse), cell_masses(truth, coarse)));
    if (toy->modes().size(0) > 0) {
      const auto coverage = mode_coverage(generated, toy->modes(), toy->mode_std());
      out.numbers.emplace_back("hq", coverage.high_quality);
      out.numbers.emplace_back("modes", static_cast<double>(coverage.modes));
    }
  } else {
    out.numbers.emplace_back("held_out_score", model.log_density(data).mean().item<double>());
    if (const auto kept = source.draw_validation(options.samples, random); kept.defined()) {
      out.numbers.emplace_back("validation_score", model.log_density(kept).mean().item<double>());
    }
    out.numbers.emplace_back("sample_score", model.log_density(generated).mean().item<double>());
  }
  const auto reference = data.slice(0, 0, kMmdPoints);
  // A small file may hold out one row, or equal ones, which have no distance to measure by.
  if (!(reference == reference[0]).all().item<bool>()) {
    out.numbers.emplace_back(
        "mmd", maximum_mean_discrepancy(generated.slice(0, 0, kMmdPoints), reference));
  }
  if (source.event() == std::vector<int64_t>{2}) {
    out.picture = picture_of(model, source.units(), data, generated);
  } else if (source.to_images(data).defined()) {
    // As many of each, so that they are of one height.
    const int64_t count = std::min(kGrid * kGrid, data.size(0));
    const auto grid = [&](const torch::Tensor& x) {
      return image_grid(source.to_images(x.slice(0, 0, count)), kGrid);
    };
    std::vector<torch::Tensor> grids = {grid(generated)};
    const auto exact = model.exact_sample(count, options.seed);
    if (exact.defined()) grids.push_back(grid(exact));
    grids.push_back(grid(data));
    out.picture = beside(grids);
    out.picture_name = "samples.png";
  }
  return out;
}

}  // namespace ddaebm
