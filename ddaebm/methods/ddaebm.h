#pragma once

#include "ddaebm/diffusion/process.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/ops/beside.h"

namespace ddaebm {

enum class Divergence { jeffrey, kl };
enum class Reconstruction { nll, mse };
enum class ReconstructionLatent { encoder, prior };
enum class ImportanceScope { reconstruction, both };

// The choices of the minimax game. Defaults are the authors' code on toy data; where the paper says
// otherwise, the comment does too.
struct GameConfig {
  Divergence divergence = Divergence::jeffrey;
  bool latent = true;
  bool posterior_term = true;
  double latent_weight = 0.1;  // the paper: 1
  Reconstruction reconstruction = Reconstruction::nll;
  ReconstructionLatent reconstruction_latent = ReconstructionLatent::encoder;
  double reconstruction_variance_floor = 0.01;
  double lambda_w = 1.0;
  double lambda_w_mid = 1.0;
  ImportanceScope lambda_scope = ImportanceScope::reconstruction;  // the paper: both
  double first_share = 0.0;
  double forward_weight = 1.0;
  double reverse_weight = 1.0;
  bool calibrate = false;
  double critic_weight = 1.0;
  double origin_std = 1.5;
  double origin_share = 0.0;
  int64_t proposals = 1;
  double gamma = 0.02;
  bool penalty_log_q = true;
  double score_weight = 0.0;
  double fake_weight = 1.0;
  double fake_margin = 0.0;
  double energy_l2 = 0.0;
  bool noise_at_t0 = false;
  double reference_std = 0.0;
  double denoise = 0.0;

  void visit(Fields& f) {
    f("divergence", divergence, {"jeffrey", "kl"}, "what the generator minimises: L1 + L2, or L1");
    f("latent", latent, "false: z is zero everywhere");
    f("posterior_term", posterior_term, "-log q_psi(z | x_t, x_{t+1}), the entropy term of L1");
    f("latent_weight", latent_weight, at_least(0), "its weight; the paper has 1");
    f("reconstruction", reconstruction, {"nll", "mse"}, "the reconstruction term of L2");
    f("reconstruction_latent", reconstruction_latent, {"encoder", "prior"},
      "which z reconstructs x_t");
    f("reconstruction_variance_floor", reconstruction_variance_floor, at_least(0),
      "least variance in nll");
    f("lambda_w", lambda_w, more_than(0), "w of the importance ratio lambda");
    f("lambda_w_mid", lambda_w_mid, more_than(0), "w_mid of lambda; w = w_mid = 1 is no weighting");
    f("lambda_scope", lambda_scope, {"reconstruction", "both"},
      "what lambda multiplies: the reconstruction, or all of L2");
    f("first_share", first_share, between(0, 1),
      "share of a batch that is at t = 0, besides its share of the rest, which has any t");
    f("forward_weight", forward_weight, at_least(0), "weight of L1, the forward divergence");
    f("reverse_weight", reverse_weight, at_least(0), "weight of L2, the reverse divergence");
    f("calibrate", calibrate,
      "E as a log-density: it learns to name where points come from; for vectors of few columns");
    f("critic_weight", critic_weight, at_least(0),
      "calibrated: weight of the samples' log-density less E in the generator's loss");
    f("origin_std", origin_std, more_than(0),
      "calibrated: standard deviation of the Gaussian that the last step's E is measured against");
    f("origin_share", origin_share, between(0, 1),
      "calibrated: share of a batch whose E is measured against that Gaussian at any step");
    f("proposals", proposals, between(1, 1000),
      "calibrated: points that a step of sampling proposes a sample, chosen among by E; 1: none");
    f("gamma", gamma, at_least(0), "weight of the gradient penalty");
    f("penalty_log_q", penalty_log_q, "whether the penalty includes log q(x_{t+1} | x_t)");
    f("score_weight", score_weight, at_least(0),
      "at t >= 1, in place of the gradient penalty: weight of the distance of E's slope from the "
      "score that the noise of x_t tells; 0: none");
    f("fake_weight", fake_weight, at_least(0), "weight of generated points in the energy's loss");
    f("fake_margin", fake_margin, at_least(0),
      "nats below the mean E of the batch's data (a rank's or a micro-batch's own) beyond which "
      "generated points no longer count there; 0: none");
    f("energy_l2", energy_l2, at_least(0), "weight of E squared on real and generated points");
    f("noise_at_t0", noise_at_t0, "whether generated x_0 get the posterior's noise");
    f("reference_std", reference_std, at_least(0),
      "standard deviation of a Gaussian reference in E; 0: none");
    f("denoise", denoise, at_least(0), "eta of a last step of sampling, x + eta dE(x, 0)/dx");
    f.retired("gamma_decay", 1);
    f.retired("fake_penalty", 0);
    f.retired("surround_weight", 0);
    f.retired("surround_std_min", 0.1);
    f.retired("surround_std_max", 1);
  }
};

// Every random draw of one iteration.
struct Noise {
  torch::Tensor t;            // [N], which step
  torch::Tensor eps_t;        // x_0 -> x_t
  torch::Tensor eps_next;     // x_t -> x_{t+1}
  torch::Tensor z;            // the prior's latent, [N, latent]
  torch::Tensor eps_fake;     // posterior sample of the generated x_t
  torch::Tensor eps_encoder;  // the encoder's latent of the real pair, [N, latent]
  // Points of the known Gaussian, and which rows [N] they are for; undefined unless E is
  // calibrated.
  torch::Tensor origin, from_origin;

  // Those of data first .. last - 1.
  Noise slice(int64_t first, int64_t last) const;
};

// What one iteration computed.
struct Iteration {
  torch::Tensor x_t, x_next;               // the real pair
  torch::Tensor x0_guess, fake;            // G(x_{t+1}, z, t), and x_t drawn from it
  torch::Tensor energy_real, energy_fake;  // E before its update, [N]
  torch::Tensor penalty_gradient;          // of E(x, t) + log q(x_{t+1} | x) at x_t, [N, ...]
  torch::Tensor penalty;
  torch::Tensor real_loss, fake_loss;  // the energy's; one alone where E takes all points together
  torch::Tensor energy_loss;           // their sum
  Gaussian code;                       // q_psi of the real pair; undefined where nothing needs it
  torch::Tensor x0_reconstruction;
  torch::Tensor reconstruction_loss, kl_loss, latent_loss, fake_energy_term;
  torch::Tensor forward_loss, reverse_loss;  // L1 and L2 with their weights
  torch::Tensor generator_loss;              // their sum
};

// Denoising diffusion adversarial EBM: Section 3 of the paper.
class Ddaebm : public Method {
 public:
  Ddaebm(const Schedule& schedule, const GameConfig& game, Networks networks, int64_t latent,
         std::vector<int64_t> event, const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;
  torch::Tensor features(const torch::Tensor& x) override;
  torch::Tensor sample(int64_t n, Random& random) override;
  int64_t times() const override { return process_.steps(); }
  torch::Tensor log_density_at(const torch::Tensor& x, int64_t t) override;
  torch::Tensor diffused(const torch::Tensor& x, int64_t t, Random& random) override;
  torch::Tensor regenerated(const torch::Tensor& x, Random& random) override;

  // The game with every draw supplied.
  Iteration play(const torch::Tensor& x0, const Noise& noise, const Update& update);
  Noise draw(const torch::Tensor& x0, Random& random) const;
  // x_T, ..., x_0 of n samples.
  std::vector<torch::Tensor> sample_path(int64_t n, Random& random) override;

 private:
  torch::Tensor energy(const torch::Tensor& x, const torch::Tensor& t, const Steps& at);
  // E from what its network gave.
  torch::Tensor with_reference(const torch::Tensor& e, const torch::Tensor& x,
                               const Steps& at) const;
  // The same and its gradient in x, both differentiable in E's parameters.
  ops::ValueAndGradient energy_and_gradient(const torch::Tensor& x, const torch::Tensor& t,
                                            const Steps& at);
  // In turn: the real pair (x_t, x_{t+1}); what E makes of x_t; what the generator makes of
  // x_{t+1}, the reconstruction where it will be asked for.
  static Iteration diffuse(const torch::Tensor& x0, const Steps& at, const Noise& noise);
  bool real_apart() const;
  void judge_real(Iteration& it, const Steps& at, const Noise& noise);
  // `of_log_q`: what the paper's penalty has of log q(x_{t+1} | x_t), at t = 0; undefined: nothing.
  torch::Tensor slope_penalty(const torch::Tensor& gradient, const torch::Tensor& of_log_q,
                              const Steps& at, const Noise& noise) const;
  void generate(Iteration& it, const Steps& at, const Noise& noise, bool reconstruct);
  torch::Tensor encode(Iteration& it, const Noise& noise);
  void energy_loss(Iteration& it, const Steps& at, const Noise& noise);
  torch::Tensor level(const torch::Tensor& e) const;
  void reverse_loss(Iteration& it, const Steps& at, const Noise& noise);
  // `encoded`: when the encoder has seen the real pairs.
  void forward_loss(Iteration& it, const Steps& at, const Noise& noise, ops::Handover& encoded);
  // Calibration: E and F, the log-density of generated points, both at the same x, each [N].
  struct Densities {
    torch::Tensor data, fake;
  };
  Densities densities(const torch::Tensor& x, const torch::Tensor& t);
  // Of points x [kinds N, D], those of each kind in turn; E(x, t) of the first kind, [N].
  enum Origin : int64_t { kDatum, kFake, kNext };
  torch::Tensor origin_loss(const torch::Tensor& x, const std::vector<Origin>& origins,
                            const Noise& noise, torch::Tensor& energy);
  torch::Tensor losses(const Iteration& it) const;

  Process process_;
  GameConfig game_;
  Networks nets_;
  int64_t latent_;
  std::vector<int64_t> event_;
  torch::TensorOptions options_;
  torch::Tensor lambda_;  // [T]; undefined where it is one throughout
  std::shared_ptr<torch::nn::Module> module_;
};

std::unique_ptr<MethodSettings> ddaebm_settings();

}  // namespace ddaebm
