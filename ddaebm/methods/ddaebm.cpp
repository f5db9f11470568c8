#include "ddaebm/methods/ddaebm.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Context.h>

#include "ddaebm/diffusion/sampler.h"
#include "ddaebm/error.h"
#include "ddaebm/ops/beside.h"
#include "ddaebm/ops/row_sums.h"

namespace ddaebm {
namespace {

constexpr size_t kEnergy = 0;
constexpr size_t kGenerator = 1;

// Weights are often one, and then cost nothing.
torch::Tensor weighed(double weight, const torch::Tensor& x) {
  return weight == 1.0 ? x : weight * x;
}

// The energy's loss; where E takes all points together, it has one part.
torch::Tensor both_parts(const Iteration& it) {
  return it.real_loss.defined() ? it.real_loss + it.fake_loss : it.fake_loss;
}

}  // namespace

Ddaebm::Ddaebm(const Schedule& schedule, const GameConfig& game, Networks networks, int64_t latent,
               std::vector<int64_t> event, const torch::TensorOptions& options)
    : process_(schedule, options, game.reconstruction_variance_floor),
      game_(game),
      nets_(std::move(networks)),
      latent_(latent),
      event_(std::move(event)),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("ddaebm")) {
  if (game.lambda_w != 1 || game.lambda_w_mid != 1) {
    // lambda(t) belongs to the time of x_{t+1}.
    const auto lambda = schedule.importance(game.lambda_w, game.lambda_w_mid);
    lambda_ = torch::tensor(lambda, torch::kDouble).slice(0, 1).to(options);
  }
  module_->register_module("energy", nets_.energy);
  module_->register_module("generator", nets_.generator);
  module_->register_module("encoder", nets_.encoder);
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& Ddaebm::players() const {
  static const std::vector<Player> players = {{"energy", {"energy"}},
                                              {"generator", {"generator", "encoder"}}};
  return players;
}

const std::vector<std::string>& Ddaebm::loss_names() const {
  static const std::vector<std::string> names = {"energy",      "generator",   "penalty",
                                                 "energy_real", "energy_fake", "reconstruction",
                                                 "kl_to_prior", "latent",      "fake_energy"};
  return names;
}

torch::Tensor Ddaebm::energy(const torch::Tensor& x, const torch::Tensor& t, const Steps& at) {
  return with_reference(nets_.energy->forward(x, t), x, at);
}

torch::Tensor Ddaebm::with_reference(const torch::Tensor& e, const torch::Tensor& x,
                                     const Steps& at) const {
  return game_.reference_std > 0 ? e + at.log_gaussian(x, game_.reference_std) : e;
}

ops::ValueAndGradient Ddaebm::energy_and_gradient(const torch::Tensor& x, const torch::Tensor& t,
                                                  const Steps& at) {
  auto [e, gradient] = nets_.energy->value_and_gradient(x, t);
  if (game_.reference_std > 0) {
    e = e + at.log_gaussian(x, game_.reference_std);
    gradient = gradient + at.grad_log_gaussian(x, game_.reference_std);
  }
  return {e, gradient};
}

Noise Ddaebm::draw(const torch::Tensor& x0, Random& random) const {
  const int64_t n = x0.size(0);
  const auto like_x = [&] { return random.normal(x0.sizes(), options_); };
  const auto like_z = [&] {
    return game_.latent ? random.normal({n, latent_}, options_)
                        : torch::zeros({n, latent_}, options_);
  };
  Noise noise;
  noise.t = random.integers(process_.steps(), {n});
  noise.eps_t = like_x();
  noise.eps_next = like_x();
  noise.z = like_z();
  noise.eps_fake = like_x();
  noise.eps_encoder = like_z();
  if (game_.first_share > 0) {
    const auto first = random.uniform({n}, options_) < game_.first_share;
    noise.t = noise.t.masked_fill(first, 0);
  }
  if (game_.calibrate) {
    noise.origin = game_.origin_std * like_x();
    noise.from_origin = noise.t == process_.steps() - 1;
    if (game_.origin_share > 0) {
      noise.from_origin = noise.from_origin | (random.uniform({n}, options_) < game_.origin_share);
    }
  }
  return noise;
}

Noise Noise::slice(int64_t first, int64_t last) const {
  const auto cut = [&](const torch::Tensor& all) {
    return all.defined() ? all.slice(0, first, last) : all;
  };
  return {cut(t),        cut(eps_t),       cut(eps_next), cut(z),
          cut(eps_fake), cut(eps_encoder), cut(origin),   cut(from_origin)};
}

Iteration Ddaebm::diffuse(const torch::Tensor& x0, const Steps& at, const Noise& noise) {
  Iteration it;
  it.x_t = at.diffuse(x0, noise.eps_t);
  it.x_next = at.advance(it.x_t, noise.eps_next);
  return it;
}

void Ddaebm::generate(Iteration& it, const Steps& at, const Noise& noise, bool reconstruct) {
  std::vector<torch::Tensor> latents = {noise.z};
  const bool reverse = reconstruct && game_.divergence == Divergence::jeffrey;
  if (reverse) {
    const auto z = encode(it, noise);
    if (game_.reconstruction_latent == ReconstructionLatent::encoder) latents.push_back(z);
  }
  const auto guesses = nets_.generator->guesses(it.x_next, latents, noise.t);
  // p_phi(x_t | x_{t+1}), eq. 9: the same draw serves both updates.
  it.x0_guess = guesses.front();
  it.fake = at.posterior_sample(it.x0_guess, it.x_next, noise.eps_fake, game_.noise_at_t0);
  if (reverse) it.x0_reconstruction = guesses.back();
}

// The code of the real pair, and a z drawn by it.
torch::Tensor Ddaebm::encode(Iteration& it, const Noise& noise) {
  it.code = nets_.encoder->forward(it.x_t, it.x_next, noise.t);
  if (!game_.latent) return noise.z;
  return it.code.mean + (0.5 * it.code.log_variance).exp() * noise.eps_encoder;
}

Iteration Ddaebm::play(const torch::Tensor& x0, const Noise& noise, const Update& update) {
  using Lane = ops::Beside::Lane;
  const Steps at = process_.at(noise.t, x0.dim());
  Iteration it = diffuse(x0, at, noise);
  // What shares weights alone runs side by side: E of the data and of generated points, L1 and L2.
  ops::Beside real(x0.device(), Lane::first);
  ops::Beside reverse(x0.device(), Lane::second);
  ops::Handover encoded(x0.device());
  const bool both_at_once =
      nets_.generator->one_pass() || game_.reconstruction_latent == ReconstructionLatent::prior;
  const bool apart = !both_at_once && game_.divergence == Divergence::jeffrey;
  if (real_apart()) {
    real.run([&] {
      judge_real(it, at, noise);
      update(kEnergy, it.real_loss, /*last=*/false);
    });
  }
  real.join([&] {
    generate(it, at, noise, /*reconstruct=*/both_at_once);
    reverse.run([&] {
      if (apart) {
        const auto z = encoded.after([&] { return encode(it, noise); });
        it.x0_reconstruction = nets_.generator->forward(it.x_next, z, noise.t);
      } else {
        encoded.made();
      }
      reverse_loss(it, at, noise);
    });
    energy_loss(it, at, noise);
    update(kEnergy, it.fake_loss, /*last=*/false);
  });
  update(kEnergy, {}, /*last=*/true);
  if (apart) reverse.run([&] { update(kGenerator, it.reverse_loss, /*last=*/false); });
  reverse.join([&] {
    forward_loss(it, at, noise, encoded);
    if (apart) update(kGenerator, it.forward_loss, /*last=*/false);
  });
  it.generator_loss = it.forward_loss + it.reverse_loss;
  update(kGenerator, apart ? torch::Tensor() : it.generator_loss, /*last=*/true);
  it.energy_loss = both_parts(it);
  return it;
}

void Ddaebm::judge_real(Iteration& it, const Steps& at, const Noise& noise) {
  if (game_.calibrate) {
    const auto next = torch::where(noise.from_origin.unsqueeze(1), noise.origin, it.x_next);
    it.real_loss = origin_loss(torch::cat({it.x_t, next}), {kDatum, kNext}, noise, it.energy_real);
    it.penalty = torch::zeros({}, options_);
    return;
  }
  auto [e, gradient] = energy_and_gradient(it.x_t, noise.t, at);
  it.energy_real = e;
  const auto of_log_q = game_.penalty_log_q ? at.grad_log_q(it.x_next, it.x_t) : torch::Tensor();
  it.penalty_gradient = of_log_q.defined() ? gradient + of_log_q : gradient;
  it.penalty = game_.score_weight > 0
                   ? 0.5 * slope_penalty(gradient, of_log_q, at, noise).mean()
                   : 0.5 * game_.gamma * ops::weighted_squares(it.penalty_gradient).mean();
  it.real_loss = it.penalty - it.energy_real.mean();
  if (game_.energy_l2 > 0) it.real_loss = it.real_loss + level(it.energy_real);
}

// Denoising score matching: |sigma_t dE/dx_t + eps_t|^2 is least where E = log q(x_t), which is the
// game's own best answer; so its weight bends nothing, where a penalty of the slope flattens E. At
// t = 0, where x_t has hardly any noise, the paper's.
torch::Tensor Ddaebm::slope_penalty(const torch::Tensor& gradient, const torch::Tensor& of_log_q,
                                    const Steps& at, const Noise& noise) const {
  const auto first = noise.t == 0;
  std::vector<int64_t> as_rows(static_cast<size_t>(gradient.dim()), 1);
  as_rows[0] = gradient.size(0);
  const auto paper = of_log_q.defined() ? of_log_q : torch::zeros_like(noise.eps_t);
  const auto target = -torch::where(first.view(as_rows), paper, noise.eps_t);
  const auto sigma = at.sigma();
  return ops::weighted_squares(gradient, target,
                               {torch::where(first, torch::ones_like(sigma), sigma),
                                torch::where(first, torch::full_like(sigma, game_.gamma),
                                             torch::full_like(sigma, game_.score_weight)),
                                {}});
}

// Without a penalty E takes real and generated points together.
bool Ddaebm::real_apart() const {
  return game_.calibrate || game_.gamma > 0 || game_.score_weight > 0;
}

// The game sees differences of E only; this holds its level, and its scale from running away.
torch::Tensor Ddaebm::level(const torch::Tensor& e) const {
  return game_.energy_l2 * e.square().mean();
}

// Maximisation in E, eq. 22, with the gradient penalty, eq. 23: what judge_real left of it.
void Ddaebm::energy_loss(Iteration& it, const Steps& at, const Noise& noise) {
  if (game_.calibrate) {
    it.fake_loss = origin_loss(it.fake.detach(), {kFake}, noise, it.energy_fake);
    return;
  }
  const auto& t = noise.t;
  const auto fake = it.fake.detach();
  if (real_apart()) {
    it.energy_fake = energy(fake, t, at);
    it.fake_loss = weighed(game_.fake_weight, it.energy_fake.mean());
  } else {
    const auto both = nets_.energy->forward(torch::cat({it.x_t, fake}), t.repeat(2)).chunk(2);
    it.energy_real = with_reference(both[0], it.x_t, at);
    it.energy_fake = with_reference(both[1], fake, at);
    it.penalty = torch::zeros({}, options_);
    auto counted = it.energy_fake;
    if (game_.fake_margin > 0) {
      // A point far from all data has nothing more to teach, and would drown the others.
      counted = counted.max(it.energy_real.mean().detach() - game_.fake_margin);
    }
    it.fake_loss = game_.fake_weight * counted.mean() - it.energy_real.mean();
    if (game_.energy_l2 > 0) it.fake_loss = it.fake_loss + level(it.energy_real);
  }
  if (game_.energy_l2 > 0) it.fake_loss = it.fake_loss + level(it.energy_fake);
}

Ddaebm::Densities Ddaebm::densities(const torch::Tensor& x, const torch::Tensor& t) {
  const auto both = nets_.energy->at_times(x, torch::stack({t, t + process_.steps()}));
  return {both[0], both[1]};
}

// Where does a point come from: is it x_t, a generated x_t, or x_{t+1}? The answer's logits are
// E(x, t), F(x, t) and E(x, t+1), and their cross-entropy is least where these are the
// log-densities of the three up to a term that they share. At the last step, and in a share of all
// rows, a Gaussian takes the place of x_{t+1}, and its log-density that of E(x, t+1): so the shared
// term is zero there, and by the chain of steps everywhere. docs/calibration.md derives it.
torch::Tensor Ddaebm::origin_loss(const torch::Tensor& x, const std::vector<Origin>& origins,
                                  const Noise& noise, torch::Tensor& energy) {
  const auto kinds = static_cast<int64_t>(origins.size());
  const auto n = noise.t.size(0);
  const int64_t last = process_.steps() - 1;
  const auto t = noise.t.repeat(kinds);
  const auto e = nets_.energy->at_times(
      x, torch::stack({t, t + process_.steps(), (t + 1).clamp_max(last)}));  // [3, kinds N]

  const double s = game_.origin_std;
  const double log_scale = std::log(s) + 0.5 * std::log(2.0 * std::numbers::pi);
  const auto known =
      sum_event(x.square()) / (-2.0 * s * s) - log_scale * static_cast<double>(x.size(1));
  const auto of_next = torch::where(noise.from_origin.repeat(kinds), known, e[2]);
  const auto log_p = torch::stack({e[0], e[1], of_next}).log_softmax(0);
  energy = e[0].slice(0, 0, n);
  torch::Tensor loss;
  for (int64_t i = 0; i < kinds; ++i) {
    const auto right = log_p[origins[static_cast<size_t>(i)]].slice(0, i * n, (i + 1) * n);
    loss = loss.defined() ? loss - right.mean() : -right.mean();
  }
  return loss;
}

// Minimisation in p_phi and q_psi: the bound of L2, eq. 19,
void Ddaebm::reverse_loss(Iteration& it, const Steps& at, const Noise& noise) {
  if (game_.divergence != Divergence::jeffrey) {
    it.reconstruction_loss = it.kl_loss = it.reverse_loss = torch::zeros({}, options_);
    return;
  }
  const auto error =
      game_.reconstruction == Reconstruction::nll
          ? -at.posterior_log_density(it.x_t, it.x0_reconstruction, it.x_next)
          : sum_event((it.x_t - at.posterior_mean(it.x0_reconstruction, it.x_next)).square());
  const auto by_importance = [&](const torch::Tensor& rows) {
    return lambda_.defined() ? lambda_.index_select(0, noise.t) * rows : rows;
  };
  it.reconstruction_loss = by_importance(error).mean();
  const auto kl = kl_to_prior(it.code);
  it.kl_loss = (game_.lambda_scope == ImportanceScope::both ? by_importance(kl) : kl).mean();
  it.reverse_loss = weighed(game_.reverse_weight, it.kl_loss + it.reconstruction_loss);
}

// and that of L1, eq. 17.
void Ddaebm::forward_loss(Iteration& it, const Steps& at, const Noise& noise,
                          ops::Handover& encoded) {
  ops::Beside beside(options_.device(), ops::Beside::Lane::first);
  Densities of_fake;
  beside.run([&] {
    if (game_.calibrate) {
      of_fake = densities(it.fake, noise.t);
    } else {
      of_fake.data = energy(it.fake, noise.t, at);
    }
    it.fake_energy_term = -(of_fake.data + at.log_q(it.x_next, it.fake)).mean();
  });
  beside.join([&] {
    if (!game_.posterior_term || !game_.latent) {
      it.latent_loss = torch::zeros({}, options_);
      return;
    }
    encoded.await();  // the encoder's norms see the real pairs first
    const auto q = nets_.encoder->forward(it.fake, it.x_next, noise.t);
    const auto nll = ops::gaussian_nll(noise.z, q.mean, q.log_variance);
    it.latent_loss = weighed(game_.latent_weight, nll.mean());
  });
  it.forward_loss = weighed(game_.forward_weight, it.fake_energy_term + it.latent_loss);
  if (game_.calibrate) {
    // KL(p_phi(x_t) || q(x_t)), whose gradient passes through the points alone.
    const auto divergence = (of_fake.fake - of_fake.data).mean();
    it.forward_loss = it.forward_loss + weighed(game_.critic_weight, divergence);
  }
}

torch::Tensor Ddaebm::losses(const Iteration& it) const {
  return torch::stack({it.energy_loss, it.generator_loss, it.penalty, it.energy_real.mean(),
                       it.energy_fake.mean(), it.reconstruction_loss, it.kl_loss, it.latent_loss,
                       it.fake_energy_term})
      .detach();
}

torch::Tensor Ddaebm::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/,
                           Random& random, const Update& update) {
  const Noise noise = draw(x0, random);
  const int64_t n = x0.size(0);
  if (micro_batch == 0 || micro_batch >= n) return losses(play(x0, noise, update));

  // Part by part: all of the energy's update, then all of the generator's. What the parts share is
  // the noise; each generates its points twice, which is what the memory saved costs.
  const auto for_parts = [&](const auto& body) {
    for (int64_t first = 0; first < n; first += micro_batch) {
      const int64_t last = std::min(first + micro_batch, n);
      const Noise part = noise.slice(first, last);
      body(x0.slice(0, first, last), part, process_.at(part.t, x0.dim()), last == n,
           static_cast<double>(last - first) / static_cast<double>(n));
    }
  };
  std::vector<Iteration> parts;
  for_parts([&](const auto& x, const Noise& part, const Steps& at, bool last, double share) {
    Iteration it = diffuse(x, at, part);
    if (real_apart()) {
      judge_real(it, at, part);
      update(kEnergy, it.real_loss * share, /*last=*/false);
      it.real_loss = it.real_loss.detach();
    }
    {
      const torch::NoGradGuard no_grad;
      generate(it, at, part, /*reconstruct=*/false);
    }
    energy_loss(it, at, part);
    update(kEnergy, it.fake_loss * share, last);
    it.energy_loss = both_parts(it);
    // The numbers stay, the graph goes.
    for (auto* tensor :
         {&it.energy_loss, &it.fake_loss, &it.penalty, &it.energy_real, &it.energy_fake}) {
      *tensor = tensor->detach();
    }
    it.penalty_gradient = torch::Tensor();
    parts.push_back(it);
  });
  auto total = torch::zeros({static_cast<int64_t>(loss_names().size())}, options_);
  size_t i = 0;
  for_parts([&](const auto&, const Noise& part, const Steps& at, bool last, double share) {
    Iteration& it = parts[i++];
    generate(it, at, part, /*reconstruct=*/true);
    reverse_loss(it, at, part);
    ops::Handover encoded(options_.device());
    encoded.made();
    forward_loss(it, at, part, encoded);
    it.generator_loss = it.forward_loss + it.reverse_loss;
    update(kGenerator, it.generator_loss * share, last);
    total = total + losses(it) * share;
    it = Iteration();
  });
  return total;
}

torch::Tensor Ddaebm::log_density(const torch::Tensor& x) { return log_density_at(x, 0); }

torch::Tensor Ddaebm::log_density_at(const torch::Tensor& x, int64_t t) {
  const auto times = torch::full({x.size(0)}, t, options_.dtype(torch::kLong));
  return energy(x, times, process_.at(times, x.dim()));
}

torch::Tensor Ddaebm::features(const torch::Tensor& x) {
  return nets_.energy->features(x, torch::zeros({x.size(0)}, options_.dtype(torch::kLong)));
}

torch::Tensor Ddaebm::diffused(const torch::Tensor& x, int64_t t, Random& random) {
  const auto times = torch::full({x.size(0)}, t, options_.dtype(torch::kLong));
  return process_.at(times, x.dim()).diffuse(x, random.normal(x.sizes(), options_));
}

// x_1 ~ q(x_1 | x_0), then p_phi(x_0 | x_1).
torch::Tensor Ddaebm::regenerated(const torch::Tensor& x, Random& random) {
  Noise noise = draw(x, random);
  noise.t = torch::zeros_like(noise.t);
  const Steps at = process_.at(noise.t, x.dim());
  Iteration it = diffuse(x, at, noise);
  generate(it, at, noise, /*reconstruct=*/false);
  return it.fake;
}

torch::Tensor Ddaebm::sample(int64_t n, Random& random) {
  auto x = sample_path(n, random).back();
  if (game_.denoise == 0) return x;
  const torch::AutoGradMode with_gradients(true);
  const auto t = torch::zeros({n}, options_.dtype(torch::kLong));
  const auto gradient = energy_and_gradient(x, t, process_.at(t, x.dim())).gradient;
  return x + game_.denoise * gradient.detach();
}

std::vector<torch::Tensor> Ddaebm::sample_path(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  // An export has noise as its only input, and cannot choose.
  const bool weighed = game_.calibrate && game_.proposals > 1 && !random.supply_normal;
  const int64_t points = weighed ? n * game_.proposals : n;
  std::vector<int64_t> shape = {points};
  shape.insert(shape.end(), event_.begin(), event_.end());
  const Denoiser denoise = [&](const torch::Tensor& x_next, const torch::Tensor& t) {
    const auto z = game_.latent ? random.normal({points, latent_}, options_)
                                : torch::zeros({points, latent_}, options_);
    return nets_.generator->forward(x_next, z, t);
  };
  const auto x_T = random.normal(shape, options_);
  if (!weighed) {
    return ddaebm::sample_path(process_, denoise, x_T, game_.noise_at_t0, random);
  }
  // q(x_t) / p_phi(x_t), which calibration has learnt for every step.
  const LogRatio ratio = [&](const torch::Tensor& x, const torch::Tensor& t) {
    const Densities log = densities(x, t);
    return log.data - log.fake;
  };
  return weighed_path(process_, denoise, x_T, game_.noise_at_t0, random, ratio, n);
}

namespace {

struct DdaebmSettings : MethodSettings {
  ScheduleConfig diffusion;
  MlpConfig net;
  ImageNetConfig image_net;
  GameConfig game;

  void visit(Fields& f) override {
    f.section("diffusion", diffusion);
    f.section("net", net);
    f.section("image_net", image_net);
    f.section("game", game);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    if (game.calibrate && game.reference_std > 0) {
      fail("game.reference_std is {} and game.calibrate is set; set one of them to 0 or false",
           game.reference_std);
    }
    if (game.score_weight > 0 && game.calibrate) {
      fail("game.score_weight is {} and game.calibrate is set; set one of them to 0 or false",
           game.score_weight);
    }
    if (game.fake_margin > 0 && (game.calibrate || game.gamma > 0 || game.score_weight > 0)) {
      fail(
          "game.fake_margin is {}; it is for games without game.gamma, game.score_weight and "
          "game.calibrate: set these to 0 and false, or it to 0",
          game.fake_margin);
    }
    if (event.size() == 1) {
      // Calibrated, the energy has a time more for each step: that step's generated points.
      const int64_t energy_times = (game.calibrate ? 2 : 1) * diffusion.steps;
      return std::make_unique<Ddaebm>(
          Schedule(diffusion), game,
          make_vector_networks(event[0], diffusion.steps, net, energy_times), net.latent, event,
          options);
    }
    if (game.calibrate) {
      fail(
          "game.calibrate is set and data are of shape [{}]; it works for vectors of few columns, "
          "since points of neighbouring steps must be hard to tell apart; set it to false",
          fmt::join(event, ", "));
    }
    const ImageShape image = image_shape(event);
    at::globalContext().setAllowTF32CuDNN(image_net.precision != Precision::float32);
    at::globalContext().setAllowTF32CuBLAS(image_net.precision != Precision::float32);
    return std::make_unique<Ddaebm>(Schedule(diffusion), game,
                                    make_image_networks(image, diffusion.steps, image_net),
                                    image_net.latent, event, options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> ddaebm_settings() { return std::make_unique<DdaebmSettings>(); }

}  // namespace ddaebm
