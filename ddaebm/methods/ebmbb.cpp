#include "ddaebm/methods/ebmbb.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr size_t kEnergy = 0;
constexpr size_t kGenerator = 1;
constexpr int kSquarings = 6;  // 64 inverse iterations

}  // namespace

Ebmbb::Ebmbb(const EbmbbConfig& config, std::shared_ptr<EnergyNet> energy, Mlp generator,
             int64_t latent, const torch::TensorOptions& options)
    : config_(config),
      energy_(std::move(energy)),
      generator_(std::move(generator)),
      latent_(latent),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("ebmbb")) {
  module_->register_module("energy", energy_);
  module_->register_module("generator", generator_.ptr());
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& Ebmbb::players() const {
  static const std::vector<Player> players = {{"energy", {"energy"}}, {"generator", {"generator"}}};
  return players;
}

const std::vector<std::string>& Ebmbb::loss_names() const {
  static const std::vector<std::string> names = {
      "energy", "generator", "lower", "upper", "penalty", "energy_real", "energy_fake", "entropy"};
  return names;
}

Ebmbb::Image Ebmbb::image(const torch::Tensor& z) {
  const int64_t n = z.size(0);
  const int64_t dimension = generator_->layers().back().weight.size(0);
  const bool was_training = generator_->is_training();
  generator_->eval();
  // Row i of J is the slope of output i: all rows at once, each from a copy of z.
  const auto copies = z.detach().repeat({dimension, 1}).requires_grad_();
  const auto x = generator_->forward(copies);
  const auto rows = torch::eye(dimension, options_).repeat_interleave(n, 0);
  const auto slopes = torch::autograd::grad({x}, {copies}, {rows}, /*retain_graph=*/true,
                                            /*create_graph=*/true)[0];
  generator_->train(was_training);
  return {x.slice(0, 0, n), slopes.view({dimension, n, -1}).transpose(0, 1)};
}

torch::Tensor Ebmbb::log_volume(const torch::Tensor& jacobian) const {
  const auto gram = at::matmul(jacobian.transpose(1, 2), jacobian);
  // As much as rounding leaves unknown, so that a flat Jacobian has a volume all the same.
  const bool single = options_.dtype() == torch::kFloat;
  const double rounding =
      single ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  const auto ridge = 8.0 * rounding * gram.detach().diagonal(0, 1, 2).sum(1);  // [N]
  const auto raised = gram + ridge.view({-1, 1, 1}) * torch::eye(latent_, options_);
  if (config_.volume == Volume::determinant) {
    // Without a look at whether it succeeded, which would make a GPU wait.
    const auto root = std::get<0>(at::linalg_cholesky_ex(raised));
    return root.diagonal(0, 1, 2).log().sum(1);
  }
  // The right singular vector v of the smallest value by inverse iteration. With v held, the
  // gradient of |J v| is that of the singular value.
  torch::Tensor v;
  {
    const torch::NoGradGuard no_grad;
    auto power = std::get<0>(at::linalg_inv_ex(raised));
    for (int i = 0; i < kSquarings; ++i) {
      power = power / power.diagonal(0, 1, 2).sum(1).view({-1, 1, 1});
      power = at::matmul(power, power);
    }
    // A start that is seldom at right angles to the wanted vector; where it is, the bound is lost
    // for that row, not the run.
    v = at::matmul(power, torch::arange(latent_, options_).cos().unsqueeze(1));  // [N, d, 1]
    v = v / v.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-30);
  }
  const auto square = at::matmul(jacobian, v).square().sum({1, 2});
  return 0.5 * static_cast<double>(latent_) * (square + ridge).log();
}

Ebmbb::Bracket Ebmbb::bracket(const torch::Tensor& x, const torch::Tensor& fake,
                              const torch::Tensor& z, const Image& image,
                              const torch::Tensor& gamma) {
  const double entropy_of_z =
      0.5 * static_cast<double>(latent_) * (1.0 + std::log(2.0 * std::numbers::pi));
  Bracket out;
  out.real = energy_->forward(x, {}).mean();
  out.fake = energy_->forward(fake, {}).mean();
  out.entropy = entropy_of_z + log_volume(image.jacobian).mean();
  out.lower = out.fake + out.entropy - out.real;

  // log p_g(g(z)) = log N(z) - log volume. The generator is piecewise linear, so its volume has no
  // slope, and that of log p_g is -z.
  const auto slope = energy_->value_and_gradient(image.x.detach(), {}).gradient;
  const auto u = at::matmul(slope.unsqueeze(1), image.jacobian.detach()).squeeze(1) + z;
  const auto square = u.square().sum(1);
  // Not the power of a norm, whose slope at zero is not a number.
  const auto power = config_.power == 2.0 ? square : (square + 1e-12).pow(0.5 * config_.power);
  out.penalty = gamma / config_.power * power.mean();
  out.upper = out.lower + out.penalty;
  return out;
}

torch::Tensor Ebmbb::step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                          const Update& update) {
  const auto z = random.normal({x0.size(0), latent_}, options_);
  const auto fake = generator_->forward(z);
  const auto gamma = config_.gamma * torch::pow(config_.gamma_decay, progress);
  const Bracket it = bracket(x0, fake.detach(), z, image(z), gamma);
  update(kEnergy, it.upper, /*last=*/true);

  const auto loss = -(energy_->forward(fake, {}).mean() + config_.entropy_weight * it.entropy);
  update(kGenerator, loss, /*last=*/true);
  return torch::stack({it.upper - it.entropy, loss, it.lower, it.upper, it.penalty, it.real,
                       it.fake, it.entropy})
      .detach();
}

torch::Tensor Ebmbb::log_density(const torch::Tensor& x) { return energy_->forward(x, {}); }

torch::Tensor Ebmbb::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  return generator_->forward(random.normal({n, latent_}, options_));
}

namespace {

struct EbmbbSettings : MethodSettings {
  PlainConfig net;
  EbmbbConfig game;

  void visit(Fields& f) override {
    f.section("net", net);
    f.section("game", game);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    const auto dimension = vector_dimension(event);
    if (net.latent > dimension) {
      fail("net.latent is {}, data have {} columns; a volume needs net.latent of {} at most",
           net.latent, dimension, dimension);
    }
    const auto energy = make_plain_energy(dimension, net);
    return std::make_unique<Ebmbb>(game, energy, make_plain_generator(dimension, net), net.latent,
                                   options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> ebmbb_settings() { return std::make_unique<EbmbbSettings>(); }

}  // namespace ddaebm
