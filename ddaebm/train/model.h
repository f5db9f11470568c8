#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "ddaebm/data/source.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/ops/time_mlp.h"

namespace ddaebm {

// "cpu", "cuda" or "cuda:N"; an Error where that device is not there.
torch::Device parse_device(const std::string& name);

// Uses a method as it stands: x and samples are in the data's own units.
class Model {
 public:
  Model(Method& method, const Units& units, torch::TensorOptions options);
  // A trained run: the averaged weights of its newest checkpoint that is whole, or of the one that
  // is named. Reads that folder alone.
  static Model load(const std::filesystem::path& run, torch::Device device);

  // Told how many data are scored or sampled, chunk by chunk; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;

  // Shape of one datum.
  const std::vector<int64_t>& event() const { return event_; }
  // What it uses, and the map to the units that the method works in.
  Method& method() { return *method_; }
  const Units& units() const { return units_; }
  // Whether the run has these networks: an imported one may lack some.
  bool has(const std::string& network) const;
  // Unnormalised log-density of x [N, ...] -> [N], float64 on the CPU, in chunks. Higher means more
  // likely.
  torch::Tensor log_density(const torch::Tensor& x);
  // The same of time t, 0 <= t < times().
  torch::Tensor log_density_at(const torch::Tensor& x, int64_t t);
  // What the energy's network works out of x on its way, [N, F] float64 on the CPU, in chunks;
  // undefined where it shows none of that.
  torch::Tensor features(const torch::Tensor& x);
  // n samples [n, ...], float32 on the CPU, in chunks; a seed gives the same ones again.
  torch::Tensor sample(int64_t n, uint64_t seed);
  // x_T, ..., x_0 of n samples, float32 on the CPU; the samples alone where the method has no such
  // steps. n is small: all go through the networks at once.
  std::vector<torch::Tensor> sample_path(int64_t n, uint64_t seed);
  // Samples of the density itself, where it is a flow that can be inverted; else undefined.
  torch::Tensor exact_sample(int64_t n, uint64_t seed);
  // Times that the energy knows: 1 for a method without a diffusion.
  int64_t times() const { return method_->times(); }
  // Data x [N, ...] with the noise that training gives them at time t, of the type of x; x itself
  // where there is none.
  torch::Tensor diffused(const torch::Tensor& x, int64_t t, uint64_t seed);
  // Data x diffused one step and made again by the generator, of the type of x; undefined where
  // the method cannot.
  torch::Tensor regenerated(const torch::Tensor& x, uint64_t seed);
  // Unnormalised log-density of time t and its gradient in x, float64 on the CPU. An Error where
  // the method's density has no gradient.
  ops::ValueAndGradient log_density_and_gradient(const torch::Tensor& x, int64_t t);

 private:
  void check_shape(const torch::Tensor& x) const;
  // Standardised in float64: a column far from zero has few digits left in float32.
  torch::Tensor to_model(const torch::Tensor& rows) const;
  using Score = std::function<torch::Tensor(const torch::Tensor& x)>;
  torch::Tensor scored(const torch::Tensor& x, const Score& score);
  // What `change` makes of data in the model's units, chunk by chunk, in the data's own.
  using Change = std::function<torch::Tensor(const torch::Tensor& x, Random& random)>;
  torch::Tensor changed(const torch::Tensor& x, uint64_t seed, const Change& change);
  // An Error where the run lacks one of the networks that `use` needs.
  void need(const char* network, const char* use) const;

  std::shared_ptr<Method> owned_;
  Method* method_;
  Units units_;
  torch::TensorOptions options_;
  std::vector<int64_t> event_;
  int64_t chunk_;
  std::vector<std::string> missing_;  // networks that were never trained
};

}  // namespace ddaebm
