#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/random.h"

namespace ddaebm {

// Networks that are updated together: names of children of the method's module.
struct Player {
  std::string name;
  std::vector<std::string> networks;
};

// Adds the gradient of `loss` in the parameters of the player of that index to those given since
// its last step; with the last of them the optimiser takes one step that lowers their sum. An
// undefined loss adds nothing. Two threads may add to one player, and only one at a time may be the
// last.
using Update = std::function<void(size_t player, const torch::Tensor& loss, bool last)>;

// A way to train a model of data. What the loop, the checkpoints and the commands know of it.
class Method {
 public:
  virtual ~Method() = default;

  // All networks as children; owns every parameter and buffer of the method.
  virtual torch::nn::Module& module() = 0;
  virtual const std::vector<Player>& players() const = 0;
  virtual const std::vector<std::string>& loss_names() const = 0;

  // One iteration on clean data x0 [N, ...]. A pure function of its arguments, the parameters and
  // the random numbers: static shapes, no host synchronisation. `progress` is a scalar tensor that
  // runs from 0 to 1 over the run. Returns the losses, one entry a name.
  virtual torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                             const Update& update) = 0;
  // How many data go through the networks at once; 0: all of a batch. Less takes less memory and
  // gives the same step, but for networks whose norms look at the batch.
  int64_t micro_batch = 0;

  // Unnormalised log-density of clean data: x [N, ...] -> [N]. Higher means more likely.
  virtual torch::Tensor log_density(const torch::Tensor& x) = 0;
  // What its network works out of clean data on the way to their density, [N, F]; undefined where
  // it shows none of that.
  virtual torch::Tensor features(const torch::Tensor& /*x*/) { return {}; }
  // n samples, [n, ...].
  virtual torch::Tensor sample(int64_t n, Random& random) = 0;

  // What follows is for methods with a diffusion, whose energy knows times 0 to times() - 1.
  virtual int64_t times() const { return 1; }
  // log_density is that of time 0. Can be differentiated in x where a method's log_density can.
  virtual torch::Tensor log_density_at(const torch::Tensor& x, int64_t /*t*/) {
    return log_density(x);
  }
  // Clean data as training has them at time t; without a diffusion, as they are.
  virtual torch::Tensor diffused(const torch::Tensor& x, int64_t /*t*/, Random& /*random*/) {
    return x;
  }
  // Data as the generator makes them again after one step of diffusion; undefined where there is
  // no such.
  virtual torch::Tensor regenerated(const torch::Tensor& /*x*/, Random& /*random*/) { return {}; }
  // The steps of n samples, noise first; empty where a method takes none that it shows.
  virtual std::vector<torch::Tensor> sample_path(int64_t /*n*/, Random& /*random*/) { return {}; }
};

// D of data of shape [D]; an Error where they are no vectors.
int64_t vector_dimension(const std::vector<int64_t>& event);

// A method's settings, and the only way to make it.
class MethodSettings {
 public:
  virtual ~MethodSettings() = default;
  virtual void visit(Fields& fields) = 0;
  // `event`: the shape of one datum, [D] for vectors. Initial weights are drawn from the CPU's
  // default generator.
  virtual std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                        const torch::TensorOptions& options) const = 0;
};

// Makes a method's settings with their defaults.
using MakeSettings = std::unique_ptr<MethodSettings> (*)();
// Makes a method of a program's own known by a name, before settings that name it are read. A name
// that is taken is an Error.
void add_method(const std::string& name, MakeSettings make);

// An unknown name is an Error that lists the known ones.
std::unique_ptr<MethodSettings> method_settings(const std::string& name);

}  // namespace ddaebm
