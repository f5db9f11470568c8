#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/data/toy.h"
#include "ddaebm/random.h"

namespace ddaebm {

// Whether columns are shifted and scaled.
enum class Standardise { automatic, always, never };

// What data, and how they are taken; `visit` says what each setting means.
struct DataConfig {
  std::string name = "25gaussians";
  Standardise standardise = Standardise::automatic;
  double held_out = 0.1;
  std::string root;
  int64_t size = 0;
  std::vector<int64_t> crop = {0, 0, 0, 0};
  bool flip = false;
  int64_t limit = 0;
  int64_t stacks = 128000;
  double device_memory = 16;
  bool in_order = false;
  int64_t shuffle = 4096;
  int64_t lanes = 1;
  bool logit = false;
  double validation = 0.1;

  void visit(Fields& f) {
    f("name", name,
      "a built-in set (`ddaebm data list`); a .npy, .npz or .csv file; a folder of images, LMDB, "
      "tar, "
      "IDX or CIFAR files");
    f("standardise", standardise, {"automatic", "always", "never"},
      "shift and scale columns to mean 0, deviation 1; automatic: files yes, built-in sets no");
    f("held_out", held_out, between(0, 0.9),
      "files: share of rows or images kept for evaluation, where the set has no test part");
    f("root", root, "folder of the built-in image sets; empty: $DDAEBM_DATA, else ~/.cache/ddaebm");
    f("size", size, between(0, 4096),
      "images: shorter side scaled to this, the middle square kept; 0: as stored");
    f("crop", crop, at_least(0), "images: left, top, right, bottom, cut out first; zeros: no cut");
    f("flip", flip, "images: mirror every other training image, by chance");
    f("limit", limit, at_least(0), "images: train on the first so many; 0: all");
    f("stacks", stacks, at_least(0),
      "stackedmnist: training images, drawn once for all; 0: drawn afresh without end");
    f("device_memory", device_memory, more_than(0),
      "images: GiB that a set may take on the device; larger sets are read from disk as needed");
    f("in_order", in_order,
      "tar shards: read from start to end in bounded memory, each picture once an epoch; the last "
      "shards are held out");
    f("shuffle", shuffle, at_least(1),
      "in_order: pictures that are shuffled at a time, and held encoded; shards are shuffled too");
    f("lanes", lanes, at_least(1),
      "in_order: groups of shards that are read side by side, each by one rank");
    f("logit", logit, "images: as vectors of logits of noisy grey levels, as flows are trained");
    f("validation", validation, between(0, 0.9),
      "logit: share of the training images that is kept to choose by");
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

// What reading tells on its way; called on the caller's thread.
struct ReadHooks {
  std::function<void(int64_t done, int64_t total)> progress;  // may be empty
  std::function<void(const std::string&)> warn = warn_on_stderr;

  static void warn_on_stderr(const std::string& warning);
};

// Data to train on and to evaluate against, in the data's own units.
class DataSource {
 public:
  virtual ~DataSource() = default;
  // Shape of one datum.
  virtual std::vector<int64_t> event() const = 0;
  // Called before each step, outside of what is captured, where data come from disk: the n data
  // that the next draw gives. They depend on seed and step alone.
  virtual void prepare(int64_t /*step*/, int64_t /*n*/) {}
  // n training data [n, ...] on the random numbers' device; can be captured in a CUDA graph.
  virtual torch::Tensor draw(int64_t n, Random& random) = 0;
  // n data for evaluation, none of them trained on where the set is finite (then at most all of
  // it).
  virtual torch::Tensor draw_held_out(int64_t n, Random& random) = 0;
  // The same of data to choose by, which are neither trained on nor reported; undefined: none.
  virtual torch::Tensor draw_validation(int64_t /*n*/, Random& /*random*/) { return {}; }
  // The first n images that are trained on (at most all), as they are stored: uint8 [n, C, H, W] on
  // the CPU. Undefined where the data are not images.
  virtual torch::Tensor training_images(int64_t /*n*/) { return {}; }
  // Data x [n, D] that stand for images as such, uint8 [n, C, H, W]; undefined where they do not.
  virtual torch::Tensor to_images(const torch::Tensor& /*x*/) const { return {}; }
  virtual Units units() const = 0;
  // Changes when the data do, as far as can be told without reading all of a large set; empty where
  // they cannot change.
  virtual std::string fingerprint() const { return {}; }
  // The distribution itself where it is known.
  virtual const Toy* toy() const { return nullptr; }
};

// Opens what the settings name; rows of files are checked (finite, not empty) and moved to
// `device`. The seed is that of the run; it decides what data from disk come in which step. The
// share says which of them come here, as for Random.
std::unique_ptr<DataSource> open_data(const DataConfig& config, torch::Device device,
                                      const ReadHooks& hooks = {}, uint64_t seed = 0,
                                      Share share = {});

// Rows [N, D] that are in memory, as those of a file are taken: some held out, standardised. `name`
// stands in errors.
std::unique_ptr<DataSource> open_rows(const torch::Tensor& rows, const DataConfig& config,
                                      torch::Device device, const std::string& name = "rows");

// Rows [N, D] float64 of a .npy, .npz (one array) or .csv file; NaN and infinities are errors that
// name the row.
torch::Tensor read_rows(const std::string& path);

}  // namespace ddaebm
