#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <torch/types.h>

#include "ddaebm/data/source.h"
#include "ddaebm/methods/method.h"

namespace ddaebm {

// "cpu", "cuda" or "cuda:N"; an Error where that device is not there.
torch::Device parse_device(const std::string& name);

// Uses a method as it stands: x and samples are in the data's own units.
class Model {
 public:
  Model(Method& method, const Units& units, torch::TensorOptions options);
  // A trained run: the averaged weights of its newest checkpoint. Reads that folder alone.
  static Model load(const std::filesystem::path& run, torch::Device device);

  // Told how many data are scored or sampled, chunk by chunk; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;

  // Shape of one datum.
  const std::vector<int64_t>& event() const { return event_; }
  // Unnormalised log-density of x [N, ...] -> [N], float64 on the CPU, in chunks. Higher means more
  // likely.
  torch::Tensor log_density(const torch::Tensor& x);
  // n samples [n, ...], float32 on the CPU, in chunks; a seed gives the same ones again.
  torch::Tensor sample(int64_t n, uint64_t seed);
  // The same of the density itself, where it is a flow that can be inverted; else undefined.
  torch::Tensor exact_sample(int64_t n, uint64_t seed);

 private:
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
