#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/data/toy.h"
#include "ddaebm/random.h"

namespace ddaebm {

enum class Standardise { automatic, always, never };

struct DataConfig {
  std::string name = "25gaussians";
  Standardise standardise = Standardise::automatic;
  double held_out = 0.1;

  void visit(Fields& f) {
    f("name", name, "a built-in set (`ddaebm data list`), or a .npy, .npz or .csv file");
    f("standardise", standardise, {"automatic", "always", "never"},
      "shift and scale columns to mean 0, deviation 1; automatic: files yes, built-in sets no");
    f("held_out", held_out, between(0, 0.9), "files: share of rows kept for evaluation");
  }
};

// The map from the data's own units to the model's, x -> (x - shift) / scale, column by column.
struct Units {
  torch::Tensor shift, scale;  // [D]

  torch::Tensor to_model(const torch::Tensor& x) const { return (x - shift) / scale; }
  torch::Tensor to_data(const torch::Tensor& x) const { return x * scale + shift; }
  // What a log-density in model units gains when x is in data units.
  torch::Tensor log_density_gain() const { return -scale.log().sum(); }
  Units to(const torch::TensorOptions& options) const {
    return {shift.to(options), scale.to(options)};
  }
};

// Data to train on and to evaluate against, in the data's own units.
class DataSource {
 public:
  virtual ~DataSource() = default;
  // Shape of one datum.
  virtual std::vector<int64_t> event() const = 0;
  // n training data [n, ...] on the random numbers' device; can be captured in a CUDA graph.
  virtual torch::Tensor draw(int64_t n, Random& random) = 0;
  // n data for evaluation, none of them trained on where the set is finite (then at most all of
  // it).
  virtual torch::Tensor draw_held_out(int64_t n, Random& random) = 0;
  virtual Units units() const = 0;
  // The distribution itself where it is known.
  virtual const Toy* toy() const { return nullptr; }
};

// Opens what the settings name; rows of files are checked (finite, not empty) and moved to
// `device`.
std::unique_ptr<DataSource> open_data(const DataConfig& config, torch::Device device);

// Rows [N, D] float64 of a .npy, .npz (one array) or .csv file; NaN and infinities are errors that
// name the row.
torch::Tensor read_rows(const std::string& path);

}  // namespace ddaebm
