// Data sets whose density has a closed form.
#include <cmath>
#include <numbers>

#include "ddaebm/data/toy_parts.h"

namespace ddaebm::toy {
namespace {

constexpr double kPi = std::numbers::pi;

// Equally likely round Gaussians. A centre is arithmetic on its mode's number, so that drawing
// copies no table to the device.
class Gaussians : public Toy {
 public:
  Gaussians(int64_t count, double std) : count_(count), std_(std) {}

  torch::Tensor sample(int64_t n, Random& random) const override {
    auto mode = draw_modes(n, random).to(torch::kFloat);
    return centres(mode) + std_ * random.normal({n, 2}, torch::kFloat);
  }
  torch::Tensor log_density(const torch::Tensor& x) const override {
    auto log_weights =
        torch::full({count_}, -std::log(static_cast<double>(count_)), torch::kDouble);
    return mixture_log_density(x, modes(), log_weights, std_);
  }
  torch::Tensor modes() const override { return centres(torch::arange(count_, torch::kDouble)); }
  double mode_std() const override { return std_; }

 protected:
  int64_t count_;
  double std_;

 private:
  virtual torch::Tensor draw_modes(int64_t n, Random& random) const = 0;  // [n], whole numbers
  virtual torch::Tensor centres(const torch::Tensor& mode) const = 0;     // [n] -> [n, 2]
};

class GaussianGrid : public Gaussians {
 public:
  GaussianGrid() : Gaussians(kSide * kSide, 0.1 / kScale) {}

 private:
  static constexpr int64_t kSide = 5;
  static constexpr double kScale = 2.828;

  torch::Tensor draw_modes(int64_t n, Random& random) const override {
    return part_of_batch(n, count_, random);
  }
  torch::Tensor centres(const torch::Tensor& mode) const override {
    auto row = torch::floor_divide(mode, kSide);
    auto column = mode.remainder(kSide);
    return (torch::stack({row, column}, 1) - 2) * (2 / kScale);
  }
};

class GaussianCircle : public Gaussians {
 public:
  GaussianCircle() : Gaussians(8, 0.5 / kScale) {}

 private:
  static constexpr double kScale = 1.414;

  torch::Tensor draw_modes(int64_t n, Random& random) const override {
    return random.integers(count_, {n});
  }
  torch::Tensor centres(const torch::Tensor& mode) const override {
    auto angle = mode * (kPi / 4);
    return torch::stack({angle.cos(), angle.sin()}, 1) * (4 / kScale);
  }
};

// Circles about the origin of radius 3, 3 - gap, ..., each with an equal part of a batch, blurred
// by Gaussian noise.
class Rings : public Toy {
 public:
  Rings(int64_t count, double gap, double std) : count_(count), gap_(gap), std_(std) {}

  torch::Tensor sample(int64_t n, Random& random) const override {
    auto radius = kOuter - gap_ * part_of_batch(n, count_, random).to(torch::kFloat);
    auto angle = random.uniform({n}, torch::kFloat) * (2 * kPi);
    auto on_circle = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
    return on_circle + std_ * random.normal({n, 2}, torch::kFloat);
  }
  // A circle of radius R gives exp(-(r^2 + R^2) / 2 s^2) I0(r R / s^2) / (2 pi s^2) at distance r.
  torch::Tensor log_density(const torch::Tensor& x) const override {
    const double variance = std_ * std_;
    const double norm = static_cast<double>(count_) * 2 * kPi * variance;
    auto radii = kOuter - gap_ * torch::arange(count_, x.options().dtype(torch::kDouble));
    return in_chunks(x, count_, [&](const torch::Tensor& points) {
      auto r = torch::hypot(points.select(1, 0), points.select(1, 1)).unsqueeze(1);
      auto terms = torch::special_i0e(r * radii / variance).log() -
                   (r - radii).square() / (2 * variance);  // [n, count]
      return torch::logsumexp(terms, 1) - std::log(norm);
    });
  }

 private:
  static constexpr double kOuter = 3.0;
  int64_t count_;
  double gap_;
  double std_;
};

// Every other square, of side 2, of [-4, 4]^2.
class Checkerboard : public Toy {
 public:
  torch::Tensor sample(int64_t n, Random& random) const override {
    auto first = random.uniform({n}, torch::kFloat) * 4 - 2;
    auto second = random.uniform({n}, torch::kFloat) -
                  2 * random.integers(2, {n}).to(torch::kFloat) + first.floor().remainder(2);
    return torch::stack({first, second}, 1) * 2;
  }
  torch::Tensor log_density(const torch::Tensor& x) const override {
    return in_chunks(x, 2, [](const torch::Tensor& points) {
      auto square = (points / 2).floor();
      auto inside = ((square >= -2) & (square <= 1)).all(1) & (square.sum(1).remainder(2) == 0);
      auto zero = torch::full({points.size(0)}, -INFINITY, points.options());
      return zero.masked_fill(inside, -std::log(32.0));
    });
  }
};

}  // namespace

std::unique_ptr<Toy> make_25gaussians() { return std::make_unique<GaussianGrid>(); }
std::unique_ptr<Toy> make_8gaussians() { return std::make_unique<GaussianCircle>(); }
std::unique_ptr<Toy> make_circles() { return std::make_unique<Rings>(2, 1.5, 0.24); }
std::unique_ptr<Toy> make_rings() { return std::make_unique<Rings>(4, 0.75, 0.08); }
std::unique_ptr<Toy> make_checkerboard() { return std::make_unique<Checkerboard>(); }

}  // namespace ddaebm::toy
