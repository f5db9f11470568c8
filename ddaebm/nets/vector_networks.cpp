#include "ddaebm/error.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/nets/wave_mlp.h"
#include "ddaebm/ops/timed_chain.h"

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

// Net: what takes x and t.
template <class Net>
struct VectorGenerator : GeneratorNet {
  explicit VectorGenerator(Net net) : net_(register_module("net", std::move(net))) {}
  torch::Tensor forward(const torch::Tensor& x_next, const torch::Tensor& z,
                        const torch::Tensor& t) override {
    return net_(torch::cat({x_next, z}, 1), t);
  }
  Net net_;
};

// A network too sure of a point makes its density's logarithm without bound where the point then
// lies elsewhere: one such ends a training. Those that learn well stay far from these bounds.
Gaussian bounded(const torch::Tensor& mean, const torch::Tensor& log_variance) {
  return {mean, torch::hardtanh(log_variance, -12.0, 6.0)};  // clamp's gradient takes four kernels
}

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
      return ops::timed_chain({{.weight = layer.weight, .bias = layer.bias}}, code, {});
    };
    return bounded(head(mean_), head(log_variance_));
  }
  TimeMlp net_;
  Mlp mean_, log_variance_;
};

struct WaveEnergy : EnergyNet {
  WaveEnergy(int64_t dimension, int64_t times, const MlpConfig& config)
      : heads_(config.heads),
        net_(register_module("net", WaveMlp(dimension, heads_ ? times : 1, heads_ ? 0 : times,
                                            config.trunk, config.waves))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& t) override {
    return heads_ ? at_times(x, t.unsqueeze(0)).squeeze(0) : net_(x, t).squeeze(1);
  }
  torch::Tensor at_times(const torch::Tensor& x, const torch::Tensor& times) override {
    if (!heads_) return EnergyNet::at_times(x, times);
    return net_(x, torch::Tensor()).gather(1, times.t()).t();
  }
  bool heads_;
  WaveMlp net_;
};

struct WaveEncoder : EncoderNet {
  WaveEncoder(int64_t dimension, int64_t steps, const MlpConfig& config)
      : net_(register_module(
            "net", WaveMlp(2 * dimension, 2 * config.latent, steps, config.trunk, config.waves))) {}
  Gaussian forward(const torch::Tensor& x_t, const torch::Tensor& x_next,
                   const torch::Tensor& t) override {
    const auto code = net_(torch::cat({x_t, x_next}, 1), t).chunk(2, 1);
    return bounded(code[0], code[1]);
  }
  WaveMlp net_;
};

}  // namespace

Networks make_vector_networks(int64_t dimension, int64_t steps, const MlpConfig& config,
                              int64_t energy_times) {
  const bool waves = config.layers == LayerKind::waves;
  if (config.heads && (!waves || config.energy == EnergyKind::nice)) {
    fail("net.heads is set: it is for net.layers = \"waves\" and net.energy = \"mlp\"");
  }
  std::shared_ptr<EnergyNet> energy;
  if (config.energy == EnergyKind::nice) {
    energy = std::make_shared<NiceEnergy>(dimension, energy_times, config.nice);
  } else if (waves) {
    energy = std::make_shared<WaveEnergy>(dimension, energy_times, config);
  } else {
    energy = std::make_shared<VectorEnergy>(dimension, energy_times, config);
  }
  const int64_t joined = dimension + config.latent;
  if (waves) {
    return {std::move(energy),
            std::make_shared<VectorGenerator<WaveMlp>>(
                WaveMlp(joined, dimension, steps, config.trunk, config.waves)),
            std::make_shared<WaveEncoder>(dimension, steps, config)};
  }
  return {std::move(energy),
          std::make_shared<VectorGenerator<TimeMlp>>(
              TimeMlp(joined, dimension, steps, config.widths(), config.embedding, config.norm)),
          std::make_shared<VectorEncoder>(dimension, steps, config)};
}

}  // namespace ddaebm
