#pragma once

#include <memory>
#include <vector>

#include "ddaebm/nets/networks.h"

namespace ddaebm {

enum class PlainActivation { prelu, silu };
// Networks of methods without a diffusion, for vectors.
struct PlainConfig {
  EnergyKind energy = EnergyKind::mlp;
  std::vector<int64_t> energy_hidden = {300, 300, 300};
  PlainActivation energy_activation = PlainActivation::prelu;
  std::vector<int64_t> generator_hidden = {300, 300, 300};
  std::vector<int64_t> encoder_hidden = {300, 300, 300};
  int64_t latent = 2;
  Norm norm = Norm::before;
  NiceConfig nice{.embedding = 0};

  void visit(Fields& f) {
    f("energy", energy, {"mlp", "nice"},
      "an unnormalised density by layers, or a flow with an exact one");
    f("energy_hidden", energy_hidden, at_least(1), "hidden widths of a plain energy");
    f("energy_activation", energy_activation, {"prelu", "silu"},
      "of a plain energy; only silu has a curvature");
    f("generator_hidden", generator_hidden, at_least(1), "hidden widths of the generator");
    f("encoder_hidden", encoder_hidden, at_least(1), "hidden widths of networks that infer z");
    f("latent", latent, at_least(1), "dimensions of z");
    f("norm", norm, {"before", "after", "none"},
      "batch norm before or after the PReLU in the generator, or none");
    f.section("nice", nice);
  }
};

// log p(x), up to a constant unless it is a flow: forward(x, {}) -> [N].
std::shared_ptr<EnergyNet> make_plain_energy(int64_t dimension, const PlainConfig& config);
// z [N, latent] -> x [N, dimension].
Mlp make_plain_generator(int64_t dimension, const PlainConfig& config);
// A network from x or from (x, z) to what is inferred, without norms: [N, in] -> [N, out].
Mlp make_plain_encoder(int64_t in, int64_t out, const PlainConfig& config);

}  // namespace ddaebm
