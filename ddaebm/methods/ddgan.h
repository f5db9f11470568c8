#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddaebm/diffusion/process.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/nets/networks.h"

namespace ddaebm {

struct DdganConfig {
  double gamma = 0.02;

  void visit(Fields& f) {
    f("gamma", gamma, at_least(0), "weight of R1, gamma / 2 |dD/dx_t|^2, in every iteration");
  }
};

// Denoising diffusion GAN (Xiao, Kreis, Vahdat 2022): the diffusion and the generator of Ddaebm
// against a discriminator D(x_t, x_{t+1}, t) of pairs, with softplus losses. R1 acts in every
// iteration: their code applies the same term in one of fifteen.
//
// A discriminator is no density. At its best it is log q(x_t | x_{t+1}) - log p_phi(x_t | x_{t+1}),
// which is flat once the generator is right. The DDAEBM paper pictures a density of it and does not
// say which; log_density is the mean of D(x, x_1, 0) over x_1 ~ q(x_1 | x), taken with fixed draws.
class Ddgan : public Method {
 public:
  // The discriminator takes the pair as one, [x_t, x_{t+1}] along dimension 1.
  Ddgan(const Schedule& schedule, const DdganConfig& config,
        std::shared_ptr<EnergyNet> discriminator, std::shared_ptr<GeneratorNet> generator,
        int64_t latent, std::vector<int64_t> event, const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

  // The random draws of one update.
  struct Draws {
    torch::Tensor t;         // [N], which step
    torch::Tensor eps_t;     // x_0 -> x_t
    torch::Tensor eps_next;  // x_t -> x_{t+1}
    torch::Tensor z;         // [N, latent]
    torch::Tensor eps_fake;  // posterior sample of the generated x_t
    Draws slice(int64_t first, int64_t last) const;
  };
  Draws draw(const torch::Tensor& x0, Random& random) const;

  struct Judgement {
    torch::Tensor real, fake;  // D of both, [N]
    torch::Tensor penalty, loss;
  };
  Judgement discriminator_loss(const torch::Tensor& x0, const Draws& draws);
  torch::Tensor generator_loss(const torch::Tensor& x0, const Draws& draws);

 private:
  struct Pairs {
    torch::Tensor real, fake;  // [N, 2 D, ...]
  };
  Pairs pairs(const torch::Tensor& x0, const Draws& draws);

  Process process_;
  DdganConfig config_;
  std::shared_ptr<EnergyNet> discriminator_;
  std::shared_ptr<GeneratorNet> generator_;
  int64_t latent_;
  std::vector<int64_t> event_;
  torch::TensorOptions options_;
  torch::Tensor x1_noise_;  // of log_density, [draws, ...]
  std::shared_ptr<torch::nn::Module> module_;
};

std::unique_ptr<MethodSettings> ddgan_settings();

}  // namespace ddaebm
