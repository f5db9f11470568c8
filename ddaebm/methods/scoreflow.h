#pragma once

#include "ddaebm/methods/one_energy.h"

namespace ddaebm {

// The sub-VP diffusion, dx = -b(t) x / 2 dt + g(t) dw for t in [eps, 1], b linear in t. With
// B(t) = int_0^t b and m = exp(-B): x_t = sqrt(m) x_0 + (1 - m) noise, g^2 = b (1 - m^2).
struct SubVp {
  double beta_min = 0.1;
  double beta_max = 20.0;
  double time_eps = 1e-5;

  void visit(Fields& f) {
    f("beta_min", beta_min, more_than(0), "the diffusion's rate at time 0");
    f("beta_max", beta_max, more_than(0), "its rate at time 1");
    f("time_eps", time_eps, between(1e-8, 0.1), "the least time that is learned");
  }
  // Of numbers and of tensors.
  template <class T>
  T rate(const T& t) const {
    return beta_min + (beta_max - beta_min) * t;
  }
  template <class T>
  T integral(const T& t) const {  // B
    return beta_min * t + 0.5 * (beta_max - beta_min) * t * t;
  }
  // The time of that integral.
  torch::Tensor time(const torch::Tensor& integral) const;
};

// The paper's energy on toys, with random Fourier features of a time that is continuous.
struct ScoreNetConfig {
  std::vector<int64_t> branch = {16, 32};  // of x and of t, each
  std::vector<int64_t> trunk = {300, 300};
  int64_t embedding = 16;
  double fourier_scale = 1.0;

  void visit(Fields& f) {
    f("branch", branch, at_least(1), "layer widths of the branches for x and for t");
    f("trunk", trunk, at_least(1), "hidden widths after the branches are joined");
    f("embedding", embedding, at_least(2), "how many features of the time");
    f("fourier_scale", fourier_scale, more_than(0), "standard deviation of their frequencies");
  }
};
std::shared_ptr<EnergyNet> make_score_energy(int64_t dimension, const ScoreNetConfig& config);

struct ScoreFlowConfig {
  bool importance = true;
  int64_t ode_steps = 24;

  void visit(Fields& f) {
    f("importance", importance, "draw t by its weight in the loss, not uniformly");
    f("ode_steps", ode_steps, at_least(1), "steps of the flow for a density or a sample");
  }
};

// Score flow (Song et al. 2021): a score is learned at all times of a diffusion, weighted so that
// the loss bounds the likelihood, and the diffusion's probability flow then gives the density. The
// score is that of an energy, dE(x, t)/dx / (1 - m): like networks of scores it is divided by the
// noise's deviation. So E / (1 - m) is the log-density of x_t.
class ScoreFlow : public OneEnergy {
 public:
  ScoreFlow(const SubVp& sde, const ScoreFlowConfig& config, std::shared_ptr<EnergyNet> energy,
            int64_t dimension, const torch::TensorOptions& options);
  torch::Tensor losses(const torch::Tensor& x0, Random& random) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;

 private:
  // The probability flow dx/dt at a time and its divergence, the sum over probes v, [N, D] or [D],
  // of v^T (d velocity / dx) v; no probes, no divergence.
  struct Flow {
    torch::Tensor velocity, divergence;
  };
  using Probes = std::vector<torch::Tensor>;
  Flow flow(const torch::Tensor& x, double t, const Probes& probes);
  // Carries x from one time to another; `divergence` is its integral on the way.
  struct Carried {
    torch::Tensor x, divergence;
  };
  Carried carry(const torch::Tensor& x, double from, double to, const Probes& probes);
  // The unit vectors, or in many dimensions a random sign for each (Hutchinson's estimate).
  Probes probes(int64_t n) const;

  SubVp sde_;
  ScoreFlowConfig config_;
  int64_t dimension_;
};

std::unique_ptr<MethodSettings> scoreflow_settings();

}  // namespace ddaebm
