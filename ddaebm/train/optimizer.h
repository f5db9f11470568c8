#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/dist/ranks.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/train/flat.h"

namespace ddaebm {
namespace ops {
class Handover;
}

// How the step size changes over a run.
enum class RateSchedule { constant, cosine };

// Settings of Adam and of the averaged weights.
struct OptimizerConfig {
  double lr = 1e-4;
  double generator_lr_scale = 1.0;
  RateSchedule schedule = RateSchedule::constant;
  double lr_end = 0.1;
  int64_t warmup = 0;
  double beta1 = 0.0;
  double beta2 = 0.9;
  double eps = 1e-8;
  double ema = 0.0;
  double clip = 0.0;

  void visit(Fields& f) {
    const Bounds rate{.low = 0, .high = 1000, .low_is_allowed = false};
    f("lr", lr, rate, "Adam's step size");
    f("generator_lr_scale", generator_lr_scale, rate,
      "step size of all players but the first, as a factor");
    f("schedule", schedule, {"constant", "cosine"}, "how the step size falls");
    f("lr_end", lr_end, between(0, 1), "cosine: the last step size as a share of the first");
    f("warmup", warmup, at_least(0), "iterations over which the step size rises from zero");
    f("beta1", beta1, between(0, 0.99999), "Adam's memory of the gradient");
    f("beta2", beta2, between(0, 0.99999), "Adam's memory of its square");
    f("eps", eps, more_than(0), "Adam's guard against division by zero");
    f("ema", ema, between(0, 0.999999), "decay of the averaged weights that are used; 0: none");
    f("clip", clip, at_least(0), "largest gradient norm a player; 0: no clipping");
  }
  // The step size at an iteration of a run of that many.
  double rate(int64_t iteration, int64_t iterations) const;
};

// Adam and averaged weights for every player of a method. All state is plain tensors on the device.
class Optimizer {
 public:
  // With ranks a step follows the mean of their gradients.
  Optimizer(Method& method, const OptimizerConfig& config, const Ranks* ranks = nullptr);

  // Before each iteration (counted from 0); step sizes are `scale` times those of the settings.
  void set_iteration(int64_t iteration, int64_t iterations, double scale = 1.0);
  // Differentiates and updates; the `Update` of Method::step. Parts of a step may come from
  // different lanes.
  void update(size_t player, const torch::Tensor& loss, bool last = true);
  // After each iteration: the averages of buffers (batch-norm statistics).
  void average_buffers();

  // All that a checkpoint holds: weights, buffers, moments and averages, by name.
  std::vector<NamedTensor> state() const;
  // The same, end to end in a few tensors.
  std::vector<torch::Tensor> flat_state() const;
  // Of its bits; equal states have equal ones.
  uint64_t checksum() const;
  // The gradient's norm in each player's last step, [players].
  const torch::Tensor& gradient_norms() const { return norms_; }

  // Puts the averages into the networks for its lifetime.
  class UseAverages {
   public:
    explicit UseAverages(Optimizer& optimizer);
    ~UseAverages();
    UseAverages(const UseAverages&) = delete;
    UseAverages& operator=(const UseAverages&) = delete;

   private:
    void swap();
    Optimizer& optimizer_;
  };

 private:
  struct Group {
    std::string player;
    FlatTensors weights;
    std::vector<torch::Tensor> inputs;  // the weights, as autograd::grad wants them
    torch::Tensor m, v, average;
    torch::Tensor gradient;                   // gathered since the last step; undefined: none
    torch::Tensor used_gradient;              // of the last step: its memory serves the next
    std::shared_ptr<ops::Handover> gathered;  // of it
  };
  // Adds a loss's gradient to what a step will follow.
  void gather(Group& group, const torch::Tensor& loss);

  OptimizerConfig config_;
  const Ranks* ranks_;
  std::vector<Group> groups_;
  std::mutex gathering_;
  torch::Tensor dials_;  // of each player, for ops::adam, [players, 2]
  torch::Tensor norms_;
  torch::Tensor one_;  // where gradients begin
  FlatTensors buffers_;
  torch::Tensor buffer_average_;
};

}  // namespace ddaebm
