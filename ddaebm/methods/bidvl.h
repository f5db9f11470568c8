#pragma once

#include "ddaebm/methods/plain_method.h"

namespace ddaebm {

// Defaults are those of BiDVL's authors, who published image code alone; there is no penalty in it.
struct BidvlConfig {
  ContrastConfig contrast;
  double latent_weight = 1.0;
  double reconstruction_weight = 0.05;
  double weight_decay = 1e-4;

  void visit(Fields& f) {
    contrast.visit(f);
    f("latent_weight", latent_weight, at_least(0),
      "weight of the error of z as inferred from G(z), a column of z");
    f("reconstruction_weight", reconstruction_weight, at_least(0),
      "lambda: weight of the reconstruction of data and of its latents' divergence from the prior");
    f("weight_decay", weight_decay, at_least(0),
      "of generator and encoder, within Adam's gradient");
  }
};

// Bi-level doubly variational learning (Kan et al., 2022). The upper level trains E against
// generated points; the lower level fits a generator and an encoder of z to E by a symmetric
// divergence: they look for high E, keep z readable from G(z), and reconstruct data.
class Bidvl : public PlainMethod {
 public:
  Bidvl(const std::vector<int64_t>& event, const PlainConfig& net, const BidvlConfig& config,
        const torch::TensorOptions& options);

  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;

  // q(z | x).
  Gaussian infer(const torch::Tensor& x);
  // The mean over rows and columns of (mu(G(z)) - z)^2. The encoder is a constant here: it would
  // else learn to read whatever the generator writes.
  torch::Tensor latent_error(const torch::Tensor& fake, const torch::Tensor& z);
  // |x - G(z)|^2 for z ~ q(z | x), and KL(q(z | x) || N(0, I)), means over rows.
  torch::Tensor reconstruction_loss(const torch::Tensor& x, Random& random);

 private:
  BidvlConfig config_;
  Mlp encoder_;  // x -> [mean, log-variance]
};

std::unique_ptr<MethodSettings> bidvl_settings();

}  // namespace ddaebm
