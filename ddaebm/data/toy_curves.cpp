// Blurred curves, whose density is an integral along the curve. The Gauss-Legendre rules have
// enough nodes for their steps to be finer than the blur everywhere, where they converge
// geometrically.
#include <cmath>
#include <numbers>

#include "ddaebm/data/toy_parts.h"

namespace ddaebm::toy {
namespace {

constexpr double kPi = std::numbers::pi;

// x = (t cos t, t sin t) / 5 + noise with t uniform on [1.5 pi, 4.5 pi].
class SwissRoll : public Toy {
 public:
  SwissRoll() {
    auto rule = gauss_legendre(kLow, kHigh, 256);
    centres_ = curve(rule.nodes);
    log_weights_ = (rule.weights / (kHigh - kLow)).log();
  }

  torch::Tensor sample(int64_t n, Random& random) const override {
    auto t = kLow + (kHigh - kLow) * random.uniform({n}, torch::kFloat);
    return curve(t) + kStd * random.normal({n, 2}, torch::kFloat);
  }
  torch::Tensor log_density(const torch::Tensor& x) const override {
    return mixture_log_density(x, centres_, log_weights_, kStd);
  }

 private:
  static constexpr double kLow = 1.5 * kPi;
  static constexpr double kHigh = 4.5 * kPi;
  static constexpr double kStd = 0.2;

  static torch::Tensor curve(const torch::Tensor& t) {
    return torch::stack({t * t.cos(), t * t.sin()}, 1) / 5;
  }

  torch::Tensor centres_;      // [nodes, 2]
  torch::Tensor log_weights_;  // [nodes]
};

// Two half circles: (cos a, sin a) and (1 - cos a, 1/2 - sin a), a uniform on [0, pi].
class Moons : public Toy {
 public:
  Moons() {
    auto rule = gauss_legendre(0, kPi, 96);
    auto zeros = torch::zeros_like(rule.nodes);
    centres_ = torch::cat({curve(rule.nodes, zeros), curve(rule.nodes, zeros + 1)});
    log_weights_ = (rule.weights / (2 * kPi)).log().repeat({2});
  }

  torch::Tensor sample(int64_t n, Random& random) const override {
    auto angle = kPi * random.uniform({n}, torch::kFloat);
    auto inner = part_of_batch(n, 2, random).to(torch::kFloat);
    return curve(angle, inner) + kStd * random.normal({n, 2}, torch::kFloat);
  }
  torch::Tensor log_density(const torch::Tensor& x) const override {
    return mixture_log_density(x, centres_, log_weights_, kStd);
  }

 private:
  static constexpr double kStd = 0.1;

  // `inner` is 0 or 1.
  static torch::Tensor curve(const torch::Tensor& angle, const torch::Tensor& inner) {
    auto sign = 1 - 2 * inner;
    return torch::stack({inner + sign * angle.cos(), 0.5 * inner + sign * angle.sin()}, 1);
  }

  torch::Tensor centres_;      // [2 * nodes, 2]
  torch::Tensor log_weights_;  // [2 * nodes]
};

// x = +-(curve(t) + b) / 3 + noise, where b is uniform on [0, 1/2]^2 and t^2 on [0, (3 pi)^2].
class Spirals : public Toy {
 public:
  Spirals() {
    // With v = t^2 + 2 t, equal steps of v are nearly equal steps along the curve.
    auto rule = gauss_legendre(0, kHigh * (kHigh + 2), 256);
    auto t = (rule.nodes + 1).sqrt() - 1;
    centres_ = curve(t) / 3 + kHalf;
    weights_ = rule.weights / (2 * (t + 1)) * t * (2 / (kHigh * kHigh));  // p(t) = 2 t / (3 pi)^2
  }

  torch::Tensor sample(int64_t n, Random& random) const override {
    auto t = random.uniform({n}, torch::kFloat).sqrt() * kHigh;
    auto sign = 1 - 2 * part_of_batch(n, 2, random).to(torch::kFloat);
    auto box = random.uniform({n, 2}, torch::kFloat) * 0.5;
    return sign.unsqueeze(1) * (curve(t) + box) / 3 + kStd * random.normal({n, 2}, torch::kFloat);
  }
  torch::Tensor log_density(const torch::Tensor& x) const override {
    auto centres = centres_.to(x.device());
    auto weights = weights_.to(x.device());
    auto spiral = [&](const torch::Tensor& points) {
      auto first = blurred_box(points.narrow(1, 0, 1) - centres.select(1, 0));  // [n, nodes]
      auto second = blurred_box(points.narrow(1, 1, 1) - centres.select(1, 1));
      return torch::mv(first.mul_(second), weights);
    };
    return in_chunks(x, 2 * centres.size(0), [&](const torch::Tensor& points) {
      return ((spiral(points) + spiral(-points)) / 2).log();
    });
  }

 private:
  static constexpr double kHigh = 3 * kPi;
  static constexpr double kHalf = 0.25 / 3;  // half the side of the box after scaling
  static constexpr double kStd = 0.1;

  static torch::Tensor curve(const torch::Tensor& t) {
    return torch::stack({-t.cos() * t, t.sin() * t}, 1);
  }
  // Density at z of uniform on [-kHalf, kHalf] plus noise. With |z| both terms are small in the
  // tail, so that their difference keeps its digits.
  static torch::Tensor blurred_box(const torch::Tensor& z) {
    auto distance = z.abs();
    constexpr double kUnit = kStd * std::numbers::sqrt2;
    return torch::erfc((distance - kHalf) / kUnit)
        .sub_(torch::erfc((distance + kHalf) / kUnit))
        .div_(4 * kHalf);
  }

  torch::Tensor centres_;  // of the boxes on the positive spiral, [nodes, 2]
  torch::Tensor weights_;  // [nodes]
};

}  // namespace

std::unique_ptr<Toy> make_swissroll() { return std::make_unique<SwissRoll>(); }
std::unique_ptr<Toy> make_moons() { return std::make_unique<Moons>(); }
std::unique_ptr<Toy> make_2spirals() { return std::make_unique<Spirals>(); }

}  // namespace ddaebm::toy
