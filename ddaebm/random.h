#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include <ATen/Context.h>
#include <torch/types.h>

namespace ddaebm {

// Which part of every batch is drawn here: rows rank * n to (rank + 1) * n of size * n.
struct Share {
  int64_t rank = 0, size = 1;
};

// The random numbers of a run. Every step is seeded anew from (seed, stream, step), so that a step
// is a function of its number alone: a resumed run draws what an uninterrupted one draws, and no
// generator state needs to be saved. Numbers come from the device's default generator, which is the
// one that CUDA graphs know how to advance and that dropout uses; or from one of its own, which
// gives the same numbers and lets runs go on side by side.
//
// With a share every draw is that of the joined batch, of which the rows of this rank are given, so
// that ranks together compute what one process would. They draw from a generator of their own; the
// default one, which dropout uses, differs between them.
class Random {
 public:
  enum class Generator { shared, own };
  explicit Random(torch::Device device, uint64_t seed = 0, Generator kind = Generator::shared,
                  Share share = {})
      : device_(device),
        seed_(seed),
        share_(share),
        generator_(at::globalContext().defaultGenerator(device)) {
    if (kind == Generator::own || share.size > 1) generator_ = generator_.clone();
    restart(kInitial, 0);
  }

  // Streams keep uses apart, so that none shares numbers with another.
  enum Stream : uint64_t { kInitial, kTraining, kEvaluation, kSampling };

  void restart(Stream stream, uint64_t step) {
    const uint64_t seed = mix(mix(seed_ ^ mix(stream)) ^ step);
    reseed(generator_, seed);
    if (share_.size > 1) {
      reseed(at::globalContext().defaultGenerator(device_),
             mix(seed ^ static_cast<uint64_t>(share_.rank + 1)));
    }
  }

  // Where set, it supplies what `normal` gives: an export has noise as its input.
  std::function<torch::Tensor(at::IntArrayRef shape)> supply_normal;

  // Rows are the first dimension of a shape.
  torch::Tensor normal(at::IntArrayRef shape, const torch::TensorOptions& options) {
    if (supply_normal) return supply_normal(shape);
    return mine(at::randn(joined(shape), generator_, options.device(device_)), shape);
  }
  torch::Tensor uniform(at::IntArrayRef shape, const torch::TensorOptions& options) {
    return mine(at::rand(joined(shape), generator_, options.device(device_)), shape);
  }
  // Whole numbers in [0, high).
  torch::Tensor integers(int64_t high, at::IntArrayRef shape) {
    return mine(at::randint(high, joined(shape), generator_,
                            torch::TensorOptions(torch::kLong).device(device_)),
                shape);
  }
  // Which row of the joined batch the first of n rows drawn here is.
  int64_t first_row(int64_t n) const { return share_.rank * n; }

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
  static void reseed(at::Generator generator, uint64_t seed) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  std::vector<int64_t> joined(at::IntArrayRef shape) const {
    auto all = shape.vec();
    if (!all.empty()) all[0] *= share_.size;
    return all;
  }
  torch::Tensor mine(const torch::Tensor& all, at::IntArrayRef shape) const {
    if (share_.size == 1 || shape.empty()) return all;
    // Of memory of its own, so that the joined draw is let go.
    return all.narrow(0, first_row(shape[0]), shape[0]).clone();
  }

  torch::Device device_;
  uint64_t seed_;
  Share share_;
  at::Generator generator_;
};

}  // namespace ddaebm
