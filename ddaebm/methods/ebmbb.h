#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddaebm/methods/method.h"
#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

// How the volume that the generator's Jacobian J [D, d] spans enters the entropy:
// smallest: d log s, with s the smallest singular value, a lower bound of
// determinant: 1/2 log det J^T J, which is exact.
enum class Volume { smallest, determinant };

struct EbmbbConfig {
  Volume volume = Volume::smallest;
  double entropy_weight = 1.0;
  double gamma = 0.01;
  double gamma_decay = 0.1;
  double power = 2.0;

  void visit(Fields& f) {
    f("volume", volume, {"smallest", "determinant"},
      "entropy by the Jacobian's smallest singular value, a bound, or by its determinant");
    f("entropy_weight", entropy_weight, at_least(0), "weight of the entropy for the generator");
    f("gamma", gamma, at_least(0), "m, weight of the upper bound's penalty, at the start");
    f("gamma_decay", gamma_decay, more_than(0),
      "what has become of gamma at the end, as a factor; geometric in between");
    f("power", power, at_least(1), "p, the power of the gradient's norm in the penalty");
  }
};

// EBM with bidirectional bounds (Geng, Wang, Gao, Frellsen, Hauberg 2021) for vectors. With F the
// log-density up to log Z, x = g(z) generated and p_g their density, the negative log-likelihood
// E_data[-F] + log Z lies between
//   lower = E_data[-F] + E[F(g(z))] + H(p_g),   H(p_g) = H(z) + E[1/2 log det J^T J]
//   upper = lower + m / p E[|u|^p],             u = d/dz [F(g(z)) - log p_g(g(z))].
// The gap of the lower bound is KL(p_g || p). With z Gaussian, p = 2 and m = 1 the penalty bounds
// it wherever F(g(z)) - log p_g(g(z)) is concave in z, by the log-Sobolev inequality; else for some
// larger m. Their code has m fall from 0.01 to 0.001, the defaults here, with which `upper` is a
// penalised loss and no longer a bound. The generator raises the lower bound, the energy lowers the
// upper one. Slopes are taken in z, as in the authors' code: their x need not fill the space.
class Ebmbb : public Method {
 public:
  Ebmbb(const EbmbbConfig& config, std::shared_ptr<EnergyNet> energy, Mlp generator, int64_t latent,
        const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

  // x = g(z) [N, D] and J = dx/dz [N, D, d] with the running statistics of batch norms, which is
  // how samples are made. Both can be differentiated in the parameters.
  struct Image {
    torch::Tensor x, jacobian;
  };
  Image image(const torch::Tensor& z);
  // The volume's logarithm, [N].
  torch::Tensor log_volume(const torch::Tensor& jacobian) const;
  // The two bounds and what they are made of, all scalars.
  struct Bracket {
    torch::Tensor lower, upper;
    torch::Tensor penalty;     // m / p E|u|^p
    torch::Tensor entropy;     // H(p_g), or its bound
    torch::Tensor real, fake;  // mean F of both
  };
  // Of data x, generated points `fake`, and latents z with their image; m is gamma.
  Bracket bracket(const torch::Tensor& x, const torch::Tensor& fake, const torch::Tensor& z,
                  const Image& image, const torch::Tensor& gamma);

 private:
  EbmbbConfig config_;
  std::shared_ptr<EnergyNet> energy_;
  Mlp generator_;
  int64_t latent_;
  torch::TensorOptions options_;
  std::shared_ptr<torch::nn::Module> module_;
};

std::unique_ptr<MethodSettings> ebmbb_settings();

}  // namespace ddaebm
