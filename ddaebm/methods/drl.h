#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddaebm/methods/method.h"
#include "ddaebm/nets/networks.h"

namespace ddaebm {

struct DrlConfig {
  int64_t levels = 6;
  double beta_start = 1e-4;
  double beta_end = 0.02;
  int64_t langevin_steps = 30;
  double b_square = 2e-4;
  double density_scale = 1.0;

  void visit(Fields& f) {
    f("levels", levels, between(2, 500), "T, the number of noise levels that have an energy");
    f("beta_start", beta_start, between(1e-9, 0.5), "variance of the first of 1000 fine steps");
    f("beta_end", beta_end, between(1e-9, 0.5), "and of the last; linear in between");
    f("langevin_steps", langevin_steps, at_least(1), "K, steps of Langevin dynamics a level");
    f("b_square", b_square, more_than(0), "b^2, which scales the square of the step size");
    f("density_scale", density_scale, more_than(0),
      "factor of the log-density that is reported; 1: what the conditional energies say");
  }
};

// The numbers of the levels, in float64; entry t is of the pair (x_t, x_{t+1}). A fine diffusion of
// 1000 steps is cut after steps 0, k, 2 k, ..., (T - 1) k and 999, with k = floor(500 / (T - 1)).
struct RecoveryLevels {
  explicit RecoveryLevels(const DrlConfig& config);
  std::vector<double> a_bar, sigma_bar;    // x_t = a_bar x_0 + sigma_bar eps
  std::vector<double> a_next, sigma_next;  // x_{t+1} = a_next x_t + sigma_next eps
  std::vector<double> y_scale;             // y = y_scale x_t: a_next, 1 at the last level
  std::vector<double> tie;                 // 1 / sigma_next^2, 0 at the last level
  std::vector<double> step;                // s^2 = (sigma_bar_t / sigma_bar_0) b^2 sigma_next^2
  std::vector<double> weight;              // of the loss, sigma_1 / sigma_{t+1}
};

// Diffusion recovery likelihood (Gao, Song, Poole, Wu, Kingma 2021) for vectors: at each level an
// energy of y = a x_t given the noisier x_{t+1},
//   log p(y | x_{t+1}) = f(y, t) / s_t^2 - |y - x_{t+1}|^2 / (2 sigma_{t+1}^2) + const,
// without the second term at the last level. It is trained by maximum likelihood against K steps of
// Langevin dynamics that start at x_{t+1}. The marginal log-density of clean data so is
// f(a x, 0) / s_0^2; f alone is that times s_0^2.
class Drl : public Method {
 public:
  Drl(const DrlConfig& config, std::shared_ptr<EnergyNet> energy, std::vector<int64_t> event,
      const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

  // K steps of y += s^2 / 2 d log p(y | x_{t+1})/dy + s eps, from y = x_{t+1} [N, D]; t [N].
  torch::Tensor langevin(const torch::Tensor& x_next, const torch::Tensor& t, Random& random);

 private:
  DrlConfig config_;
  std::shared_ptr<EnergyNet> energy_;
  std::vector<int64_t> event_;
  torch::TensorOptions options_;
  double first_scale_, first_step_;  // y_scale and step of level 0
  torch::Tensor table_;              // [T, columns]
  std::shared_ptr<torch::nn::Module> module_;
};

std::unique_ptr<MethodSettings> drl_settings();

}  // namespace ddaebm
