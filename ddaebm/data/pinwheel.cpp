#include <cmath>
#include <numbers>

#include "ddaebm/data/toy_parts.h"

namespace ddaebm::toy {
namespace {

constexpr double kPi = std::numbers::pi;

// Five elongated Gaussians f = (1 + .3 n1, .1 n2), each turned clockwise by an angle that grows
// with f1: a = 2 pi k / 5 + exp(f1) / 4; then everything times 2.
class Pinwheel : public Toy {
 public:
  torch::Tensor sample(int64_t n, Random& random) const override {
    auto noise = random.normal({n, 2}, torch::kFloat);
    auto f1 = 1 + kRadial * noise.select(1, 0);
    auto f2 = kTangential * noise.select(1, 1);
    auto angle =
        part_of_batch(n, kArms, random).to(torch::kFloat) * (2 * kPi / kArms) + kRate * f1.exp();
    auto cos = angle.cos();
    auto sin = angle.sin();
    return 2 * torch::stack({f1 * cos + f2 * sin, f2 * cos - f1 * sin}, 1);
  }

  // Turning keeps the radius r = |x| / 2 and takes the polar angle b of f to theta = b - a(f1), the
  // polar angle of x. So the f that lead to x are those on the circle of radius r with
  //   turns(b) = (b - exp(r cos b) / 4 - theta) / (2 pi / 5)
  // a whole number, whichever the arm. As dtheta / db = 1 + exp(f1) f2 / 4 at fixed r, each adds
  //   N(f1; 1, .3) N(f2; 0, .1) / |1 + exp(f1) f2 / 4| / (4 * 5).
  torch::Tensor log_density(const torch::Tensor& x) const override {
    return in_chunks(x, 3 * kCells, [](const torch::Tensor& points) {
      const double width = 2 * kPi / kCells;
      auto r = torch::hypot(points.select(1, 0), points.select(1, 1)) / 2;
      auto theta = torch::atan2(points.select(1, 1), points.select(1, 0));

      // Cells of b whose ends lie on two sides of a whole number. They resolve every root up to
      // |x| = 7; further out some are missed, but there the density is below 1e-15.
      auto b = torch::arange(kCells + 1, points.options()) * width - kPi;
      auto ends = turns(b, r.unsqueeze(1), theta.unsqueeze(1));  // [n, cells + 1]
      auto left = ends.narrow(1, 0, kCells).floor();
      auto right = ends.narrow(1, 1, kCells).floor();
      auto crossed = left != right;
      auto found = crossed.nonzero();  // [roots, 2]
      auto point = found.select(1, 0);
      auto target = torch::maximum(left, right).masked_select(crossed);
      auto low = b.index_select(0, found.select(1, 1));
      r = r.index_select(0, point);
      theta = theta.index_select(0, point);

      // Newton from the middle of the cell, kept inside it.
      auto root = low + width / 2;
      for (int step = 0; step < 6; ++step) {
        auto slope = stretch(r * root.cos(), r * root.sin()) * (kArms / (2 * kPi));
        root = root - (turns(root, r, theta) - target) / slope;
        root = torch::minimum(torch::maximum(root, low), low + width);
      }

      auto f1 = r * root.cos();
      auto f2 = r * root.sin();
      auto log_terms = -0.5 * (((f1 - 1) / kRadial).square() + (f2 / kTangential).square()) -
                       stretch(f1, f2).abs().log() -
                       std::log(2 * kPi * kRadial * kTangential * 4 * kArms);
      auto table = torch::full(crossed.sizes(), -INFINITY, points.options());
      return torch::logsumexp(table.masked_scatter(crossed, log_terms), 1);
    });
  }

 private:
  static constexpr int64_t kArms = 5;
  static constexpr double kRadial = 0.3;
  static constexpr double kTangential = 0.1;
  static constexpr double kRate = 0.25;
  static constexpr int64_t kCells = 256;

  // The bound keeps points far outside from overflowing.
  static torch::Tensor twist(const torch::Tensor& f1) { return kRate * f1.clamp_max(50).exp(); }
  static torch::Tensor turns(const torch::Tensor& b, const torch::Tensor& r,
                             const torch::Tensor& theta) {
    return (b - twist(r * b.cos()) - theta) * (kArms / (2 * kPi));
  }
  static torch::Tensor stretch(const torch::Tensor& f1, const torch::Tensor& f2) {
    return 1 + twist(f1) * f2;
  }
};

}  // namespace

std::unique_ptr<Toy> make_pinwheel() { return std::make_unique<Pinwheel>(); }

}  // namespace ddaebm::toy
