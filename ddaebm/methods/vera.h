#pragma once

#include "ddaebm/methods/plain_method.h"

namespace ddaebm {

// Defaults are those of VERA's authors on toy data.
struct VeraConfig {
  ContrastConfig contrast;
  double entropy_weight = 1.0;
  int64_t posterior_samples = 20;
  double sigma = 0.01;
  double sigma_min = 0.01;
  double sigma_max = 0.3;
  double posterior_scale = 0.1;

  void visit(Fields& f) {
    contrast.visit(f);
    f("entropy_weight", entropy_weight, at_least(0),
      "weight of the generator's entropy; 0: none, which is WGAN-0GP");
    f("posterior_samples", posterior_samples, at_least(2),
      "importance samples of z a generated point, for the entropy's gradient");
    f("sigma", sigma, more_than(0), "noise on generated points at the start; it is learned");
    f("sigma_min", sigma_min, more_than(0), "the least it may become");
    f("sigma_max", sigma_max, more_than(0), "the most");
    f("posterior_scale", posterior_scale, more_than(0),
      "width of the approximate posterior of z at the start; it is learned");
  }
};

// Positive numbers that are learned by their logarithms.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl(int64_t size, double initial);
  torch::Tensor forward() const { return log_scale.exp(); }
  void clamp(double low, double high);
  torch::Tensor log_scale;  // [size]
};
TORCH_MODULE(Scale);

// No MCMC for me (Grathwohl et al., 2021). The generator's density is q(x, z) = N(z; 0, I)
// N(x; G(z), sigma^2 I); it maximises E(x) plus its entropy, whose gradient comes from importance
// samples of z around the one that made x.
class Vera : public PlainMethod {
 public:
  Vera(const std::vector<int64_t>& event, const PlainConfig& net, const VeraConfig& config,
       const torch::TensorOptions& options);

  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  // G(z) and noise.
  torch::Tensor sample(int64_t n, Random& random) override;

  // -d log q(x)/dx at x = G(z) + sigma eps, [N, D], without a graph: the mean of (x - G(z')) /
  // sigma^2 over the posterior of z', by self-normalised importance sampling.
  torch::Tensor negative_score(const torch::Tensor& z, const torch::Tensor& eps, Random& random);
  // The mean over a batch of log q(x, z') - log N(z'; z, s^2) for one z' ~ N(z, s^2) a row.
  // Differentiable in s.
  torch::Tensor posterior_elbo(const torch::Tensor& x, const torch::Tensor& z, Random& random);

  torch::Tensor sigma() const { return sigma_->forward(); }                      // [1]
  torch::Tensor posterior_scale() const { return posterior_scale_->forward(); }  // [latent]

 private:
  VeraConfig config_;
  Scale sigma_, posterior_scale_;
};

std::unique_ptr<MethodSettings> vera_settings();
std::unique_ptr<MethodSettings> wgan0gp_settings();

}  // namespace ddaebm
