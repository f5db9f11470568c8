#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {
namespace {

struct PlainEnergy : EnergyNet {
  PlainEnergy(int64_t dimension, const std::vector<int64_t>& widths)
      : net_(register_module("net", Mlp(dimension, widths, Norm::none))) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*t*/) override {
    return net_(x).squeeze(1);
  }
  Mlp net_;
};

std::vector<int64_t> with_last(std::vector<int64_t> hidden, int64_t out) {
  hidden.push_back(out);
  return hidden;
}

}  // namespace

std::shared_ptr<EnergyNet> make_plain_energy(int64_t dimension, const PlainConfig& config) {
  if (config.energy == EnergyKind::nice) {
    return std::make_shared<NiceEnergy>(dimension, 1, config.nice);
  }
  return std::make_shared<PlainEnergy>(dimension, with_last(config.energy_hidden, 1));
}

Mlp make_plain_generator(int64_t dimension, const PlainConfig& config) {
  return Mlp(config.latent, with_last(config.generator_hidden, dimension), config.norm);
}

Mlp make_plain_encoder(int64_t in, int64_t out, const PlainConfig& config) {
  return Mlp(in, with_last(config.encoder_hidden, out), Norm::none);
}

}  // namespace ddaebm
