#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include <ATen/Context.h>
#include <torch/types.h>

namespace ddaebm {

// The random numbers of a run. Every step is seeded anew from (seed, stream, step), so that a step
// is a function of its number alone: a resumed run draws what an uninterrupted one draws, and no
// generator state needs to be saved. Numbers come from the device's default generator, which is the
// one that CUDA graphs know how to advance and that dropout uses; or from one of its own, which
// gives the same numbers and lets runs go on side by side.
class Random {
 public:
  enum class Generator { shared, own };
  explicit Random(torch::Device device, uint64_t seed = 0, Generator kind = Generator::shared)
      : device_(device), seed_(seed), generator_(at::globalContext().defaultGenerator(device)) {
    if (kind == Generator::own) generator_ = generator_.clone();
    restart(kInitial, 0);
  }

  // Streams keep uses apart, so that none shares numbers with another.
  enum Stream : uint64_t { kInitial, kTraining, kEvaluation, kSampling };

  void restart(Stream stream, uint64_t step) {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_current_seed(mix(mix(seed_ ^ mix(stream)) ^ step));
  }

  // Where set, it supplies what `normal` gives: an export has noise as its input.
  std::function<torch::Tensor(at::IntArrayRef shape)> supply_normal;

  torch::Tensor normal(at::IntArrayRef shape, const torch::TensorOptions& options) {
    if (supply_normal) return supply_normal(shape);
    return at::randn(shape, generator_, options.device(device_));
  }
  torch::Tensor uniform(at::IntArrayRef shape, const torch::TensorOptions& options) {
    return at::rand(shape, generator_, options.device(device_));
  }
  // Whole numbers in [0, high).
  torch::Tensor integers(int64_t high, at::IntArrayRef shape) {
    return at::randint(high, shape, generator_, torch::TensorOptions(torch::kLong).device(device_));
  }

  torch::Device device() const { return device_; }
  const at::Generator& generator() const { return generator_; }
  uint64_t seed() const { return seed_; }

  // SplitMix64's finaliser: neighbouring seeds and steps give unrelated streams.
  static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
  }

 private:
  torch::Device device_;
  uint64_t seed_;
  at::Generator generator_;
};

}  // namespace ddaebm
