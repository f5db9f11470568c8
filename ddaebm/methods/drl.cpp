#include "ddaebm/methods/drl.h"

#include <cmath>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

enum Column : int64_t {
  kABar,
  kSigmaBar,
  kANext,
  kSigmaNext,
  kYScale,
  kTie,
  kStep,
  kWeight,
};

// The columns of a batch's times: [columns, N, 1].
torch::Tensor columns_at(const torch::Tensor& table, const torch::Tensor& t) {
  return table.index_select(0, t).t().unsqueeze(2);
}

}  // namespace

RecoveryLevels::RecoveryLevels(const DrlConfig& config) {
  constexpr int64_t kFine = 1000;
  const int64_t T = config.levels;
  const int64_t stride = kFine / (2 * (T - 1));
  // a[t] is of the steps up to x_t, from x_{t-1} or from the data.
  std::vector<double> a;
  int64_t fine = 0;
  for (int64_t t = 0; t <= T; ++t) {
    double kept = 1.0;
    for (const int64_t last = t == T ? kFine - 1 : t * stride; fine <= last; ++fine) {
      const double share = static_cast<double>(fine) / static_cast<double>(kFine - 1);
      kept *= 1.0 - (config.beta_start + share * (config.beta_end - config.beta_start));
    }
    a.push_back(std::sqrt(kept));
  }
  double product = 1.0;
  for (int64_t t = 0; t < T; ++t) {
    const auto i = static_cast<size_t>(t);
    const bool is_last = t + 1 == T;
    product *= a[i];
    const double variance = 1.0 - a[i + 1] * a[i + 1];
    a_bar.push_back(product);
    sigma_bar.push_back(std::sqrt(1.0 - product * product));
    a_next.push_back(a[i + 1]);
    sigma_next.push_back(std::sqrt(variance));
    y_scale.push_back(is_last ? 1.0 : a[i + 1]);
    tie.push_back(is_last ? 0.0 : 1.0 / variance);
    step.push_back(sigma_bar[i] / sigma_bar[0] * config.b_square * variance);
    weight.push_back(sigma_next[0] / sigma_next[i]);
  }
}

Drl::Drl(const DrlConfig& config, std::shared_ptr<EnergyNet> energy, std::vector<int64_t> event,
         const torch::TensorOptions& options)
    : config_(config),
      energy_(std::move(energy)),
      event_(std::move(event)),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("drl")) {
  const RecoveryLevels levels(config);
  first_scale_ = levels.y_scale[0];
  first_step_ = levels.step[0];
  std::vector<torch::Tensor> columns;
  for (const auto* column :
       {&levels.a_bar, &levels.sigma_bar, &levels.a_next, &levels.sigma_next, &levels.y_scale,
        &levels.tie, &levels.step, &levels.weight}) {  // in the order of Column
    columns.push_back(torch::tensor(*column, torch::kDouble));
  }
  table_ = torch::stack(columns, 1).to(options);
  module_->register_module("energy", energy_);
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& Drl::players() const {
  static const std::vector<Player> players = {{"energy", {"energy"}}};
  return players;
}

const std::vector<std::string>& Drl::loss_names() const {
  static const std::vector<std::string> names = {"energy", "f_real", "f_fake"};
  return names;
}

torch::Tensor Drl::langevin(const torch::Tensor& x_next, const torch::Tensor& t, Random& random) {
  const torch::AutoGradMode with_gradients(true);
  const auto at = columns_at(table_, t);
  const auto deviation = at[kStep].sqrt();
  const auto pull = 0.5 * at[kStep] * at[kTie];
  auto y = x_next.detach();
  for (int64_t k = 0; k < config_.langevin_steps; ++k) {
    const auto slope = energy_->value_and_gradient(y, t).gradient.detach();
    // s^2 / 2 times the gradient of f / s^2 is half that of f.
    y = y + 0.5 * slope - pull * (y - x_next) + deviation * random.normal(y.sizes(), options_);
  }
  return y;
}

torch::Tensor Drl::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/, Random& random,
                        const Update& update) {
  const auto t = random.integers(config_.levels, {x0.size(0)});
  const auto at = columns_at(table_, t);
  const auto noise = [&] { return random.normal(x0.sizes(), options_); };
  const auto x_t = at[kABar] * x0 + at[kSigmaBar] * noise();
  const auto x_next = at[kANext] * x_t + at[kSigmaNext] * noise();
  const auto fake = langevin(x_next, t, random);
  const auto f_real = energy_->forward(at[kYScale] * x_t, t);
  const auto f_fake = energy_->forward(fake, t);
  const auto loss = (at[kWeight].squeeze(1) * (f_fake - f_real)).mean();
  update(0, loss, /*last=*/true);
  return torch::stack({loss, f_real.mean(), f_fake.mean()}).detach();
}

torch::Tensor Drl::log_density(const torch::Tensor& x) {
  const auto t = torch::zeros({x.size(0)}, options_.dtype(torch::kLong));
  return config_.density_scale / first_step_ * energy_->forward(first_scale_ * x, t);
}

torch::Tensor Drl::sample(int64_t n, Random& random) {
  std::vector<int64_t> shape = {n};
  shape.insert(shape.end(), event_.begin(), event_.end());
  auto x = random.normal(shape, options_);
  for (int64_t k = config_.levels - 1; k >= 0; --k) {
    const auto t = torch::full({n}, k, options_.dtype(torch::kLong));
    x = langevin(x, t, random) / columns_at(table_, t)[kYScale];
  }
  return x;
}

namespace {

struct DrlSettings : MethodSettings {
  DrlConfig game;
  MlpConfig net;

  void visit(Fields& f) override {
    f.section("game", game);
    f.section("net", net);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    const auto dimension = vector_dimension(event);
    return std::make_unique<Drl>(game, make_vector_networks(dimension, game.levels, net).energy,
                                 event, options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> drl_settings() { return std::make_unique<DrlSettings>(); }

}  // namespace ddaebm
