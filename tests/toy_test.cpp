#include "ddaebm/data/toy.h"

#include <cmath>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"
#include "ddaebm/metrics/grid.h"

namespace ddaebm {
namespace {

constexpr double kPi = std::numbers::pi;

torch::Tensor point(double x, double y) {
  return torch::full({1, 2}, x, torch::kDouble).index_fill(1, torch::ones({1}, torch::kLong), y);
}

double density_at(const Toy& toy, double x, double y) {
  return std::exp(toy.log_density(point(x, y)).item<double>());
}

double gauss(double z, double std) {
  return std::exp(-z * z / (2 * std * std)) / (std * std::sqrt(2 * kPi));
}

// Midpoint rule, as fine as it takes.
template <class F>
double integral(double low, double high, F f) {
  constexpr int kSteps = 200000;
  const double width = (high - low) / kSteps;
  double sum = 0;
  for (int i = 0; i < kSteps; ++i) sum += f(low + (i + 0.5) * width);
  return sum * width;
}

class EveryToy : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Toy> toy_ = make_toy(GetParam());
  LogDensity log_density_ = [this](const torch::Tensor& x) { return toy_->log_density(x); };
};

TEST_P(EveryToy, DrawsTheSameFromTheSameNumbers) {
  Random random(torch::kCPU, 1);
  auto first = toy_->sample(203, random);
  EXPECT_EQ(first.sizes(), (std::vector<int64_t>{203, 2}));
  EXPECT_EQ(first.scalar_type(), torch::kFloat);
  EXPECT_TRUE(first.isfinite().all().item<bool>());
  EXPECT_FALSE(first.equal(toy_->sample(203, random)));
  Random again(torch::kCPU, 1);
  EXPECT_TRUE(first.equal(toy_->sample(203, again)));
}

TEST_P(EveryToy, DensityIntegratesToOne) {
  const Grid grid{60, -5, 5};
  auto masses = cell_masses(log_density_, grid).narrow(0, 0, grid.side * grid.side);
  EXPECT_NEAR(masses.sum().item<double>(), 1, 1e-4);
}

TEST_P(EveryToy, DensityMatchesSamples) {
  Random random(torch::kCPU, 2);
  const Grid grid{50, -4, 4};
  auto drawn = histogram(toy_->sample(400000, random), grid);
  // 2500 cells and 400k points give about 2500 / (8 * 400k) = .0008 by chance.
  EXPECT_LT(jensen_shannon(drawn, cell_masses(log_density_, grid)), 0.0015);
}

TEST_P(EveryToy, DensityKeepsTheTypeAndTakesAnyNumberOfPoints) {
  Random random(torch::kCPU, 3);
  auto x = toy_->sample(100, random);
  auto single = toy_->log_density(x);
  EXPECT_EQ(single.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::allclose(single.to(torch::kDouble), toy_->log_density(x.to(torch::kDouble)),
                              1e-5, 1e-5));
  EXPECT_TRUE(torch::allclose(single.narrow(0, 7, 1), toy_->log_density(x.narrow(0, 7, 1))));
  EXPECT_EQ(toy_->log_density(x.narrow(0, 0, 0)).sizes(), (std::vector<int64_t>{0}));
}

TEST_P(EveryToy, DensityIsNeverNaN) {
  auto far = torch::cat({point(0, 0), point(30, -40), point(3000, 1), point(-4, 4)});
  EXPECT_FALSE(toy_->log_density(far).isnan().any().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(Toys, EveryToy,
                         testing::Values("25gaussians", "8gaussians", "pinwheel", "swissroll",
                                         "2spirals", "checkerboard", "moons", "circles", "rings"),
                         [](const auto& toy) { return toy.param; });

TEST(Toys, AreFoundByName) {
  EXPECT_EQ(toy_list().size(), 9U);
  for (const auto& info : toy_list()) {
    EXPECT_TRUE(is_toy(info.name));
    EXPECT_FALSE(info.description.empty());
    EXPECT_NE(make_toy(info.name), nullptr);
  }
  EXPECT_FALSE(is_toy("cifar10"));
  try {
    make_toy("ring");
    FAIL() << "an unknown name was accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'ring'"), std::string::npos);
    for (const auto& info : toy_list())
      EXPECT_NE(std::string(error.what()).find(info.name), std::string::npos) << info.name;
  }
}

TEST(Gaussians25, BatchesHoldEqualPartsOfEachMode) {
  auto toy = make_toy("25gaussians");
  Random random(torch::kCPU, 4);
  auto x = toy->sample(200, random).to(torch::kDouble);
  auto [distance, mode] = torch::cdist(x, toy->modes()).min(1);
  EXPECT_LT(distance.max().item<double>(), 6 * toy->mode_std());
  EXPECT_TRUE(mode.equal(torch::arange(200, torch::kLong).remainder(25)));
}

TEST(Gaussians25, ModesAreTheGrid) {
  auto toy = make_toy("25gaussians");
  EXPECT_NEAR(toy->mode_std(), 0.1 / 2.828, 1e-15);
  auto modes = toy->modes();
  ASSERT_EQ(modes.sizes(), (std::vector<int64_t>{25, 2}));
  for (int k = 0; k < 25; ++k) {
    EXPECT_NEAR(modes[k][0].item<double>(), 2 * (k / 5 - 2) / 2.828, 1e-12);
    EXPECT_NEAR(modes[k][1].item<double>(), 2 * (k % 5 - 2) / 2.828, 1e-12);
  }
  const double peak = 1 / (25 * 2 * kPi * std::pow(0.1 / 2.828, 2));
  EXPECT_NEAR(density_at(*toy, 0, 2 / 2.828) / peak, 1, 1e-12);
}

TEST(Gaussians8, ModesAreOnTheCircle) {
  auto toy = make_toy("8gaussians");
  EXPECT_NEAR(toy->mode_std(), 0.5 / 1.414, 1e-15);
  EXPECT_NEAR(toy->modes()[3][0].item<double>(), 4 / 1.414 * std::cos(0.75 * kPi), 1e-12);
  EXPECT_NEAR(toy->modes()[3][1].item<double>(), 4 / 1.414 * std::sin(0.75 * kPi), 1e-12);
}

// The density of an arm's point is that of its features over the area that features spread to.
TEST(Pinwheel, DensityIsTheTransformedGaussian) {
  auto toy = make_toy("pinwheel");
  for (int arm = 0; arm < 5; ++arm) {
    for (const double f1 : {0.7, 1.0, 1.9}) {
      for (const double f2 : {-0.2, 0.0, 0.15}) {
        auto map = [arm](double a, double b) {
          const double angle = 2 * kPi * arm / 5 + 0.25 * std::exp(a);
          return std::pair{2 * (a * std::cos(angle) + b * std::sin(angle)),
                           2 * (-a * std::sin(angle) + b * std::cos(angle))};
        };
        const double h = 1e-5;
        const auto [x1, y1] = map(f1 + h, f2);
        const auto [x0, y0] = map(f1 - h, f2);
        const auto [x3, y3] = map(f1, f2 + h);
        const auto [x2, y2] = map(f1, f2 - h);
        const double area = std::abs((x1 - x0) * (y3 - y2) - (x3 - x2) * (y1 - y0)) / (4 * h * h);
        const double expected = gauss(f1 - 1, 0.3) * gauss(f2, 0.1) / area / 5;
        const auto [x, y] = map(f1, f2);
        // The other arms add hardly anything here.
        EXPECT_NEAR(density_at(*toy, x, y) / expected, 1, 1e-4) << arm << ' ' << f1 << ' ' << f2;
      }
    }
  }
}

TEST(Pinwheel, DensityIsTheSameAfterAFifthOfATurn) {
  auto toy = make_toy("pinwheel");
  auto x = torch::rand({200, 2}, torch::kDouble) * 4 - 2;
  const double c = std::cos(0.4 * kPi);
  const double s = std::sin(0.4 * kPi);
  auto turned = torch::stack(
      {c * x.select(1, 0) - s * x.select(1, 1), s * x.select(1, 0) + c * x.select(1, 1)}, 1);
  EXPECT_TRUE(torch::allclose(toy->log_density(x), toy->log_density(turned), 1e-7, 1e-7));
}

TEST(SwissRoll, DensityIsTheIntegralAlongTheCurve) {
  auto toy = make_toy("swissroll");
  for (const auto& [x, y] :
       {std::pair{0.0, 0.0}, {0.0, -0.94}, {2.4, 0.5}, {0.0, 2.83}, {3.5, 3.0}}) {
    const double expected = integral(1.5 * kPi, 4.5 * kPi, [&](double t) {
      return gauss(x - t * std::cos(t) / 5, 0.2) * gauss(y - t * std::sin(t) / 5, 0.2) / (3 * kPi);
    });
    EXPECT_NEAR(density_at(*toy, x, y) / expected, 1, 1e-6) << x << ' ' << y;
  }
}

TEST(Moons, DensityIsTheIntegralAlongTheCurves) {
  auto toy = make_toy("moons");
  for (const auto& [x, y] : {std::pair{0.0, 1.0}, {0.0, 0.0}, {1.0, 0.1}, {2.3, 0.6}}) {
    const double expected = integral(0, kPi, [&](double a) {
      return (gauss(x - std::cos(a), 0.1) * gauss(y - std::sin(a), 0.1) +
              gauss(x - 1 + std::cos(a), 0.1) * gauss(y - 0.5 + std::sin(a), 0.1)) /
             (2 * kPi);
    });
    EXPECT_NEAR(density_at(*toy, x, y) / expected, 1, 1e-6) << x << ' ' << y;
  }
}

TEST(Spirals, DensityIsTheIntegralAlongTheCurves) {
  auto toy = make_toy("2spirals");
  auto box = [](double z) {  // uniform on [0, 1/6] plus noise of .1
    const double unit = 0.1 * std::numbers::sqrt2;
    return 3 * (std::erf(z / unit) - std::erf((z - 1.0 / 6) / unit));
  };
  for (const auto& [x, y] :
       {std::pair{0.0, 0.0}, {3.2, 0.1}, {-3.2, -0.1}, {1.0, 1.2}, {0.0, 2.5}}) {
    const double expected = integral(0, 3 * kPi, [&](double t) {
      const double a = -t * std::cos(t) / 3;
      const double b = t * std::sin(t) / 3;
      return t / (9 * kPi * kPi) * (box(x - a) * box(y - b) + box(-x - a) * box(-y - b));
    });
    EXPECT_NEAR(density_at(*toy, x, y) / expected, 1, 1e-6) << x << ' ' << y;
  }
}

TEST(Rings, DensityIsTheAverageOverTheAngle) {
  auto check = [](const std::string& name, const std::vector<double>& radii, double std) {
    auto toy = make_toy(name);
    for (const double r : {0.0, 0.7, 1.5, 3.05, 3.6}) {
      const double expected = integral(0, 2 * kPi, [&](double a) {
        double sum = 0;
        for (const double radius : radii)
          sum += gauss(r * 0.6 - radius * std::cos(a), std) *
                 gauss(r * 0.8 - radius * std::sin(a), std);
        return sum / (2 * kPi * static_cast<double>(radii.size()));
      });
      EXPECT_NEAR(density_at(*toy, r * 0.6, r * 0.8) / expected, 1, 1e-6) << name << ' ' << r;
    }
  };
  check("circles", {3, 1.5}, 0.24);
  check("rings", {3, 2.25, 1.5, 0.75}, 0.08);
}

TEST(Checkerboard, DensityIsConstantOnItsSquares) {
  auto toy = make_toy("checkerboard");
  for (const auto& [x, y] :
       {std::pair{1.0, 1.0}, {-3.0, -3.0}, {1.0, -3.0}, {-1.0, 3.0}, {3.9, 2.1}})
    EXPECT_NEAR(density_at(*toy, x, y), 1.0 / 32, 1e-15) << x << ' ' << y;
  for (const auto& [x, y] :
       {std::pair{1.0, -1.0}, {-1.0, 1.0}, {1.0, 5.0}, {5.0, 5.0}, {-3.0, -1.0}})
    EXPECT_EQ(density_at(*toy, x, y), 0) << x << ' ' << y;
}

}  // namespace
}  // namespace ddaebm
