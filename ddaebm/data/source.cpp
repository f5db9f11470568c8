#include "ddaebm/data/source.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "ddaebm/data/image_source.h"
#include "ddaebm/data/images.h"
#include "ddaebm/data/logit_source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/sha256.h"

namespace ddaebm {
namespace {

Units standard_units(const torch::Tensor& rows, const std::string& name) {
  const auto x = rows.to(torch::kDouble).cpu();
  Units units{x.mean(0), x.std(0, /*unbiased=*/false)};
  const auto constant = (units.scale == 0).nonzero();
  if (constant.numel() > 0) {
    fail("{}: column {} has one value only; leave it out, a density in it does not exist", name,
         constant[0][0].item<int64_t>() + 1);
  }
  return units;
}

Units identity_units(int64_t dimension) {
  return {torch::zeros({dimension}, torch::kDouble), torch::ones({dimension}, torch::kDouble)};
}

class ToySource : public DataSource {
 public:
  explicit ToySource(const DataConfig& config) : toy_(make_toy(config.name)) {
    units_ = identity_units(2);
    if (config.standardise == Standardise::always) {
      Random random(torch::kCPU);
      units_ = standard_units(toy_->sample(1000000, random), config.name);
    }
  }
  std::vector<int64_t> event() const override { return {2}; }
  torch::Tensor draw(int64_t n, Random& random) override { return toy_->sample(n, random); }
  torch::Tensor draw_held_out(int64_t n, Random& random) override {
    return toy_->sample(n, random);
  }
  Units units() const override { return units_; }
  const Toy* toy() const override { return toy_.get(); }

 private:
  std::unique_ptr<Toy> toy_;
  Units units_;
};

// Rows and columns in float64; what has no number is an Error.
torch::Tensor checked_rows(torch::Tensor rows, const std::string& name) {
  if (rows.dim() == 1) rows = rows.unsqueeze(1);
  if (rows.dim() != 2 || rows.size(1) == 0) {
    fail("{}: an array of shape {}, expected rows and columns", name, fmt::join(rows.sizes(), "x"));
  }
  if (rows.size(0) == 0) fail("{}: no rows", name);
  rows = rows.to(torch::kCPU, torch::kDouble);
  const auto bad = rows.isfinite().logical_not().nonzero();
  if (bad.numel() > 0) {
    fail("{}: row {}, column {} is {}; remove or fill such cells first", name,
         bad[0][0].item<int64_t>() + 1, bad[0][1].item<int64_t>() + 1,
         rows[bad[0][0].item<int64_t>()][bad[0][1].item<int64_t>()].item<double>());
  }
  return rows;
}

class TableSource : public DataSource {
 public:
  // rows [N, D] float64, finite.
  TableSource(torch::Tensor rows, const DataConfig& config, torch::Device device,
              const std::string& name) {
    const int64_t n = rows.size(0);
    if (n < 2) fail("{}: {} row; training needs two at least", name, n);
    fingerprint_ = fmt::format("{} rows {}", n, hex(sha256(bytes_of(packed(rows)))));
    units_ = config.standardise == Standardise::never ? identity_units(rows.size(1))
                                                      : standard_units(rows, name);
    // Which rows are held out depends on the file alone, not on the run's seed, so that runs
    // compare.
    Random random(torch::kCPU);
    rows = rows.index_select(0, random.uniform({n}, torch::kDouble).argsort());
    const auto held_out = static_cast<int64_t>(config.held_out * static_cast<double>(n));
    const torch::TensorOptions options = torch::TensorOptions(torch::kDouble).device(device);
    train_ = rows.slice(0, held_out).to(options);
    held_out_ = held_out > 0 ? rows.slice(0, 0, held_out).to(options) : train_;
  }
  std::vector<int64_t> event() const override { return {train_.size(1)}; }
  torch::Tensor draw(int64_t n, Random& random) override {
    return train_.index_select(0, random.integers(train_.size(0), {n}));
  }
  torch::Tensor draw_held_out(int64_t n, Random&) override {
    return held_out_.slice(0, 0, std::min(n, held_out_.size(0)));
  }
  Units units() const override { return units_; }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  torch::Tensor train_, held_out_;  // [N, D]
  Units units_;
  std::string fingerprint_;
};

}  // namespace

torch::Tensor read_rows(const std::string& path) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), ::tolower);
  torch::Tensor rows;
  if (ending == ".csv" || ending == ".tsv") {
    rows = read_csv(path).rows;
  } else if (ending == ".npy") {
    rows = read_npy(path);
  } else if (ending == ".npz") {
    const auto arrays = read_npz(path);
    if (arrays.size() != 1) {
      fail("{}: {} arrays, expected one; save the one to use as .npy", path, arrays.size());
    }
    rows = arrays.begin()->second;
  } else {
    fail("{}: expected a .csv, .npy or .npz file", path);
  }
  return checked_rows(rows, path);
}

std::unique_ptr<DataSource> open_rows(const torch::Tensor& rows, const DataConfig& config,
                                      torch::Device device, const std::string& name) {
  return std::make_unique<TableSource>(checked_rows(rows, name), config, device, name);
}

void ReadHooks::warn_on_stderr(const std::string& warning) {
  fmt::print(stderr, "ddaebm: warning: {}\n", warning);
}

std::unique_ptr<DataSource> open_data(const DataConfig& config, torch::Device device,
                                      const ReadHooks& hooks, uint64_t seed, Share share) {
  if (is_toy(config.name)) return std::make_unique<ToySource>(config);
  if (config.logit) return open_logit_source(config, device, hooks);
  if (is_image_data(config.name)) {
    return open_image_source(config, device, hooks, seed, share);
  }
  if (!std::filesystem::exists(config.name)) {
    fail("data.name '{}' is neither a built-in set nor a file; `ddaebm data list` shows the sets",
         config.name);
  }
  return std::make_unique<TableSource>(read_rows(config.name), config, device, config.name);
}

}  // namespace ddaebm
