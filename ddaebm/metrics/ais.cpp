#include "ddaebm/metrics/ais.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "ddaebm/error.h"
#include "ddaebm/random.h"

namespace ddaebm {
namespace {

void check_rows(const char* what, const torch::Tensor& x) {
  if (x.dim() < 2 || x.size(0) < 2) {
    fail("{} rows to {}; annealed importance sampling needs two at least",
         x.dim() < 2 ? 0 : x.size(0), what);
  }
  if (!x.isfinite().all().item<bool>()) {
    fail("a number of the rows to {} is not finite; has the training diverged?", what);
  }
}

// x = mean + root y: coordinates y in which the fitted Gaussian is a standard one.
class Whitening {
 public:
  explicit Whitening(const torch::Tensor& fit) : shape_(fit.sizes().slice(1).vec()) {
    const auto rows = fit.flatten(1).to(torch::kDouble);
    const int64_t n = rows.size(0);
    const int64_t dimension = rows.size(1);
    const auto mean = rows.mean(0);
    const auto centred = rows - mean;
    const auto variance = centred.square().sum(0) / static_cast<double>(n - 1);
    torch::Tensor root;
    torch::Tensor deviation = variance.sqrt();
    if (n >= 2 * dimension) {
      const auto covariance = centred.t().mm(centred) / static_cast<double>(n - 1);
      root = std::get<0>(at::linalg_cholesky_ex(covariance));
      deviation = root.diagonal();  // of each coordinate, given those before
    }
    // Rounding alone leaves about 1e-16 of a variance that should be none.
    if (!(deviation.square() > 1e-13 * variance).all().item<bool>()) {
      fail(
          "the covariance of {} rows of {} numbers is singular: one is constant or follows from "
          "others; leave it out, a density in it does not exist",
          n, dimension);
    }
    mean_ = mean.to(fit.options());
    root_ = (root.defined() ? root.t() : deviation).to(fit.options());
    log_volume_ = deviation.log().sum().item<double>();
  }

  torch::Tensor to_x(const torch::Tensor& y) const { return with_shape(mean_ + times_root(y)); }
  torch::Tensor to_y(const torch::Tensor& x) const {
    const auto centred = x.flatten(1) - mean_;
    if (root_.dim() == 1) return centred / root_;
    return at::linalg_solve_triangular(root_, centred, /*upper=*/true, /*left=*/false);
  }
  // Of a density of x, as one of y.
  ops::ValueAndGradient in_y(const DensityAndGradient& density, const torch::Tensor& y) const {
    const auto at_x = density(to_x(y));
    const auto gradient = at_x.gradient.flatten(1);
    return {at_x.value + log_volume_, root_.dim() == 1 ? gradient * root_ : gradient.mm(root_.t())};
  }
  int64_t dimension() const { return mean_.size(0); }

 private:
  torch::Tensor times_root(const torch::Tensor& y) const {
    return root_.dim() == 1 ? y * root_ : y.mm(root_);
  }
  torch::Tensor with_shape(const torch::Tensor& flat) const {
    auto shape = shape_;
    shape.insert(shape.begin(), flat.size(0));
    return flat.reshape(shape);
  }

  std::vector<int64_t> shape_;
  torch::Tensor mean_;  // [D]
  torch::Tensor root_;  // [D, D], upper; or [D], deviations
  double log_volume_ = 0.0;
};

// Where chains are, and what the two densities of a stage make of it: those whose bridges are
// crossed.
struct State {
  torch::Tensor y;                 // [N, D]
  ops::ValueAndGradient from, to;  // at y
  size_t stage = 0;
};

class Annealing {
 public:
  Annealing(const std::vector<DensityAndGradient>& path, const torch::Tensor& fit,
            const AisConfig& config)
      : path_(path), config_(config), whitening_(fit), options_(fit.options()) {
    const auto stages = static_cast<int64_t>(path.size());
    const int64_t each = std::max<int64_t>(1, config.bridges / stages);
    for (size_t stage = 0; stage < path.size(); ++stage) {
      for (int64_t i = 1; i <= each; ++i) {
        bridges_.push_back({stage, share(static_cast<double>(i) / static_cast<double>(each))});
      }
    }
  }

  // Step sizes for every bridge, by a walk of few chains.
  void tune() {
    constexpr double kWanted = 0.8, kRate = 0.2;
    Random random(options_.device(), config_.seed, Random::Generator::own);
    random.restart(Random::kInitial, 0);
    double step = 0.5 / std::pow(static_cast<double>(whitening_.dimension()), 0.25);
    State state = at(start(std::clamp<int64_t>(config_.chains / 8, 16, 100), random), 0);
    for (const Bridge& bridge : bridges_) {
      enter(state, bridge.stage);
      const double accepted = move(state, bridge, step, random);
      step *= std::exp(kRate * (accepted - kWanted));
      steps_.push_back(step);
      tell();
    }
  }

  AisEstimate forward(double& acceptance) {
    Random random(options_.device(), config_.seed, Random::Generator::own);
    random.restart(Random::kSampling, 0);
    State state = at(start(config_.chains, random), 0);
    auto log_weight = torch::zeros({config_.chains}, options_.dtype(torch::kDouble));
    double accepted = 0;
    for (size_t k = 0; k < bridges_.size(); ++k) {
      enter(state, bridges_[k].stage);
      log_weight += crossing(k) * (state.to.value - state.from.value);
      accepted += move(state, bridges_[k], steps_[k], random);
      tell();
    }
    acceptance = accepted / static_cast<double>(bridges_.size());
    arrived_ = drawn_by_weight(state.y, log_weight, random);
    return estimate(log_weight);
  }

  torch::Tensor draws() const { return whitening_.to_x(arrived_); }

  AisEstimate reverse(const torch::Tensor& ends) {
    Random random(options_.device(), config_.seed, Random::Generator::own);
    random.restart(Random::kSampling, 1);
    State state = at(ends.defined() ? as_many(whitening_.to_y(ends.to(options_))) : arrived_,
                     bridges_.back().stage);
    for (int64_t i = 0; i < config_.settle; ++i) {
      move(state, bridges_.back(), steps_.back(), random);
    }
    auto log_weight = torch::zeros({config_.chains}, options_.dtype(torch::kDouble));
    for (size_t k = bridges_.size(); k-- > 0;) {
      enter(state, bridges_[k].stage);
      log_weight -= crossing(k) * (state.to.value - state.from.value);
      if (k > 0) {
        enter(state, bridges_[k - 1].stage);
        move(state, bridges_[k - 1], steps_[k - 1], random);
      }
      tell();
    }
    AisEstimate found = estimate(log_weight);  // of 1 / Z
    found.log_z = -found.log_z;
    return found;
  }

 private:
  // The density from^(1 - share) to^share of a stage.
  struct Bridge {
    size_t stage;
    double share;
  };

  // Bridges lie closer at both ends of a stage, where neighbours differ most.
  static double share(double x) {
    constexpr double kSteepness = 4;
    const auto logistic = [](double u) { return 1 / (1 + std::exp(-u)); };
    const double low = logistic(-kSteepness);
    return (logistic(kSteepness * (2 * x - 1)) - low) / (1 - 2 * low);
  }
  // How much of its stage lies between bridge k and the one before.
  double crossing(size_t k) const {
    const bool first = k == 0 || bridges_[k - 1].stage != bridges_[k].stage;
    return bridges_[k].share - (first ? 0 : bridges_[k - 1].share);
  }

  // The rows over and over.
  torch::Tensor as_many(const torch::Tensor& y) const {
    const auto which = torch::arange(config_.chains, y.device()).remainder(y.size(0));
    return y.index_select(0, which);
  }
  // Rows by their share of the weight, at even distances from one chance start.
  static torch::Tensor drawn_by_weight(const torch::Tensor& y, const torch::Tensor& log_weight,
                                       Random& random) {
    const int64_t n = y.size(0);
    const auto edges = log_weight.softmax(0).cumsum(0);
    const auto places = (torch::arange(n, edges.options()) + random.uniform({1}, edges.options())) /
                        static_cast<double>(n);
    return y.index_select(0, at::searchsorted(edges, places).clamp_max(n - 1));
  }

  torch::Tensor start(int64_t chains, Random& random) const {
    return random.normal({chains, whitening_.dimension()}, options_);
  }

  ops::ValueAndGradient density(size_t index, const torch::Tensor& y) const {
    if (index > 0) return whitening_.in_y(path_[index - 1], y);
    const double log_two_pi = std::log(2 * std::numbers::pi);
    return {-0.5 * (y.square() + log_two_pi).sum(1), -y};
  }
  State at(const torch::Tensor& y, size_t stage) const {
    return {y, density(stage, y), density(stage + 1, y), stage};
  }
  void enter(State& state, size_t stage) const {
    if (state.stage != stage) state = at(state.y, stage);
  }

  // A Hamiltonian move that leaves the bridge's density as it is; returns the share accepted.
  double move(State& state, const Bridge& bridge, double step, Random& random) const {
    const auto mixed = [&](const torch::Tensor& from, const torch::Tensor& to) {
      return (1 - bridge.share) * from + bridge.share * to;
    };
    const auto slope = [&](const State& s) { return mixed(s.from.gradient, s.to.gradient); };
    const auto hamiltonian = [&](const State& s, const torch::Tensor& momentum) {
      return mixed(s.from.value, s.to.value) - 0.5 * momentum.square().sum(1);
    };
    const int64_t n = state.y.size(0);
    auto momentum = random.normal(state.y.sizes(), options_);
    // Steps of chance length, lest a chain runs in a circle.
    const auto length = step * (0.7 + 0.6 * random.uniform({n, 1}, options_));
    const auto before = hamiltonian(state, momentum);
    State next = state;
    momentum = momentum + 0.5 * length * slope(state);
    for (int64_t i = 0; i < config_.leapfrog; ++i) {
      next = at(next.y + length * momentum, bridge.stage);
      momentum = momentum + (i + 1 < config_.leapfrog ? 1.0 : 0.5) * length * slope(next);
    }
    // NaN is less than nothing, so a move that leaves the numbers is refused.
    const auto accepted =
        random.uniform({n}, options_).log() < hamiltonian(next, momentum) - before;
    const auto choose = [&](torch::Tensor& old, const torch::Tensor& fresh) {
      old = torch::where(old.dim() == 1 ? accepted : accepted.unsqueeze(1), fresh, old);
    };
    choose(state.y, next.y);
    choose(state.from.value, next.from.value);
    choose(state.from.gradient, next.from.gradient);
    choose(state.to.value, next.to.value);
    choose(state.to.gradient, next.to.gradient);
    return accepted.to(torch::kDouble).mean().item<double>();
  }

  static AisEstimate estimate(const torch::Tensor& log_weight) {
    const auto n = static_cast<double>(log_weight.size(0));
    const double most = log_weight.max().item<double>();
    if (!std::isfinite(most)) {
      fail(
          "the weights of annealed importance sampling are not finite; has the training diverged, "
          "or does the density not fall off?");
    }
    const auto weight = (log_weight - most).exp();
    const double mean = weight.mean().item<double>();
    const auto relative = weight / mean;
    return {most + std::log(mean),
            std::sqrt((relative - 1).square().sum().item<double>() / (n * (n - 1))),
            n * n / relative.square().sum().item<double>()};
  }

  void tell() {
    ++told_;
    if (config_.progress) config_.progress(told_, 3 * static_cast<int64_t>(bridges_.size()));
  }

  const std::vector<DensityAndGradient>& path_;
  const AisConfig& config_;
  Whitening whitening_;
  torch::TensorOptions options_;
  std::vector<Bridge> bridges_;
  std::vector<double> steps_;  // one a bridge
  torch::Tensor arrived_;      // where the forward chains end, by weight
  int64_t told_ = 0;
};

}  // namespace

AisResult annealed_importance_sampling(const std::vector<DensityAndGradient>& path,
                                       const torch::Tensor& fit, const torch::Tensor& ends,
                                       const AisConfig& config) {
  TORCH_CHECK(!path.empty(), "annealed importance sampling: no density");
  if (config.chains < 2) fail("{} chains; an error bar needs two at least", config.chains);
  check_rows("fit a Gaussian to", fit);
  if (ends.defined()) check_rows("begin reverse chains with", ends);
  const at::NoGradGuard no_grad;
  Annealing annealing(path, fit, config);
  AisResult result;
  annealing.tune();
  result.forward = annealing.forward(result.acceptance);
  result.draws = annealing.draws();
  result.reverse = annealing.reverse(ends);
  return result;
}

}  // namespace ddaebm
