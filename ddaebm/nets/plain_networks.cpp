#include "ddaebm/nets/plain_networks.h"

#include "ddaebm/error.h"
#include "ddaebm/nets/smooth_mlp.h"

namespace ddaebm {
namespace {

template <class Net>
struct PlainEnergy : EnergyNet {
  explicit PlainEnergy(const Net& net) : net_(register_module("net", net)) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return net_(x).squeeze(1);
  }
  Net net_;
};

std::vector<int64_t> with_last(std::vector<int64_t> hidden, int64_t out) {
  hidden.push_back(out);
  return hidden;
}

}  // namespace

std::shared_ptr<EnergyNet> make_plain_energy(int64_t dimension, const PlainConfig& config) {
  if (config.energy == EnergyKind::nice) {
    if (config.nice.embedding > 0) {
      fail("net.nice.embedding is {}; this method has no time to embed: set it to 0",
           config.nice.embedding);
    }
    return std::make_shared<NiceEnergy>(dimension, 1, config.nice);
  }
  const auto widths = with_last(config.energy_hidden, 1);
  if (config.energy_activation == PlainActivation::silu) {
    return std::make_shared<PlainEnergy<SmoothMlp>>(SmoothMlp(dimension, widths));
  }
  return std::make_shared<PlainEnergy<Mlp>>(Mlp(dimension, widths, Norm::none));
}

Mlp make_plain_generator(int64_t dimension, const PlainConfig& config) {
  return Mlp(config.latent, with_last(config.generator_hidden, dimension), config.norm);
}

Mlp make_plain_encoder(int64_t in, int64_t out, const PlainConfig& config) {
  return Mlp(in, with_last(config.encoder_hidden, out), Norm::none);
}

}  // namespace ddaebm
