#include "ddaebm/nets/networks.h"

namespace ddaebm {
namespace {

struct VectorEnergy : EnergyNet {
  VectorEnergy(int64_t dimension, int64_t steps, const MlpConfig& config)
      : net_(register_module(
            "net", TimeMlp(dimension, 1, steps, config.widths(), config.embedding, Norm::none))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    return net_(x, t).squeeze(1);
  }
  ops::ValueAndGradient value_and_gradient(const torch::Tensor& x,
                                           const torch::Tensor& t) override {
    return net_->value_and_gradient(x, t);
  }
  TimeMlp net_;
};

struct VectorGenerator : GeneratorNet {
  VectorGenerator(int64_t dimension, int64_t steps, const MlpConfig& config)
      : net_(register_module("net", TimeMlp(dimension + config.latent, dimension, steps,
                                            config.widths(), config.embedding, config.norm))) {}
  torch::Tensor forward(const torch::Tensor& x_next, const torch::Tensor& z,
                        const torch::Tensor& t) override {
    return net_(torch::cat({x_next, z}, 1), t);
  }
  TimeMlp net_;
};

struct VectorEncoder : EncoderNet {
  VectorEncoder(int64_t dimension, int64_t steps, const MlpConfig& config)
      : net_(register_module("net",
                             TimeMlp(2 * dimension, config.code, steps, config.encoder_widths(),
                                     config.embedding, config.norm))),
        mean_(register_module("mean", Mlp(config.code, std::vector{config.latent}, Norm::none))),
        log_variance_(register_module("log_variance",
                                      Mlp(config.code, std::vector{config.latent}, Norm::none))) {}
  Gaussian forward(const torch::Tensor& x_t, const torch::Tensor& x_next,
                   const torch::Tensor& t) override {
    const auto code = net_(torch::cat({x_t, x_next}, 1), t);
    const auto head = [&](const Mlp& linear) {
      const ops::Dense& layer = linear->layers().front();
      return at::linear(code, layer.weight, layer.bias);
    };
    return {head(mean_), head(log_variance_)};
  }
  TimeMlp net_;
  Mlp mean_, log_variance_;
};

}  // namespace

Networks make_vector_networks(int64_t dimension, int64_t steps, const MlpConfig& config) {
  std::shared_ptr<EnergyNet> energy;
  if (config.energy == EnergyKind::nice) {
    energy = std::make_shared<NiceEnergy>(dimension, steps, config.nice);
  } else {
    energy = std::make_shared<VectorEnergy>(dimension, steps, config);
  }
  return {std::move(energy), std::make_shared<VectorGenerator>(dimension, steps, config),
          std::make_shared<VectorEncoder>(dimension, steps, config)};
}

}  // namespace ddaebm
