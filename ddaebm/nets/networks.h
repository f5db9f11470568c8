#pragma once

#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "ddaebm/nets/image_config.h"
#include "ddaebm/nets/mlp.h"

namespace ddaebm {

// The three networks of the paper, whatever the data. x are [N, ...], t [N] int64, z [N, latent].

// Unnormalised log-density of x_t: the paper's E(x_t, t) -> [N]. Higher means more likely.
struct EnergyNet : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) = 0;
  // E and dE/dx, row by row. Losses may hold both: what comes out can be differentiated in the
  // parameters. The default is for networks whose forward is twice differentiable.
  virtual ops::ValueAndGradient value_and_gradient(const torch::Tensor& x, const torch::Tensor& t);
  // E(x_i, times[k][i]) for each k: x [N, D], times [K, N] -> [K, N]. The default evaluates it for
  // each pair.
  virtual torch::Tensor at_times(const torch::Tensor& x, const torch::Tensor& times) {
    return forward(x.repeat({times.size(0), 1}), times.flatten()).view(times.sizes());
  }
  // A few numbers that it works out of x on its way to E, [N, F]; undefined where it has none to
  // show.
  virtual torch::Tensor features(const torch::Tensor& /*x*/, const torch::Tensor& /*t*/) {
    return {};
  }
};

// A flow as an energy; t may be undefined where the flow knows no time.
struct NiceEnergy : EnergyNet {
  NiceEnergy(int64_t dimension, int64_t steps, const NiceConfig& config)
      : flow(register_module("flow", Nice(dimension, steps, config))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    return flow->log_density(x, t);
  }
  Nice flow;
};

// A guess of x_0 from x_{t+1}: G(x_{t+1}, z, t).
struct GeneratorNet : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& x_next, const torch::Tensor& z,
                                const torch::Tensor& t) = 0;
  // A guess for each of several z, in one pass where `one_pass` says so. The default makes one
  // after the other, as a network with batch norms must.
  virtual bool one_pass() const { return false; }
  virtual std::vector<torch::Tensor> guesses(const torch::Tensor& x_next,
                                             const std::vector<torch::Tensor>& zs,
                                             const torch::Tensor& t);
};

// q_psi(z | x_t, x_{t+1}) = N(mean, exp(log_variance)), both [N, latent].
struct Gaussian {
  torch::Tensor mean, log_variance;
};
// KL(N(mean, exp(log_variance)) || N(0, I)), [N].
torch::Tensor kl_to_prior(const Gaussian& q);
// q_psi itself.
struct EncoderNet : torch::nn::Module {
  virtual Gaussian forward(const torch::Tensor& x_t, const torch::Tensor& x_next,
                           const torch::Tensor& t) = 0;
};

// All three.
struct Networks {
  std::shared_ptr<EnergyNet> energy;
  std::shared_ptr<GeneratorNet> generator;
  std::shared_ptr<EncoderNet> encoder;
};

// The networks of the paper's toy table, for vectors of any dimension: x [N, dimension].
// The energy may know more times than there are steps.
Networks make_vector_networks(int64_t dimension, int64_t steps, const MlpConfig& config,
                              int64_t energy_times);
inline Networks make_vector_networks(int64_t dimension, int64_t steps, const MlpConfig& config) {
  return make_vector_networks(dimension, steps, config, steps);
}

// Those of its appendix for images x [N, channels, size, size].
struct ImageShape {
  int64_t channels, size;
};
// Of data [C, S, S]; an Error where they are no square images.
ImageShape image_shape(const std::vector<int64_t>& event);
// All three of them.
Networks make_image_networks(const ImageShape& image, int64_t steps, const ImageNetConfig& config);
// The encoder alone.
std::shared_ptr<EncoderNet> make_image_encoder(const ImageShape& image, int64_t steps,
                                               const ImageNetConfig& config);

}  // namespace ddaebm
