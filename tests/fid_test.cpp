#include "ddaebm/metrics/fid.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "temp_dir.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/metrics/feature_sets.h"

namespace ddaebm {
namespace {

// Features that any program can make: set k = 0, 1.
torch::Tensor made_up(int64_t n, int64_t width, double k) {
  const auto i = torch::arange(1, n + 1, torch::kDouble).unsqueeze(1);
  const auto j = torch::arange(width, torch::kDouble);
  return torch::sin(0.37 * i * (j + 1) * (j + 1) + 1.3 * k * i) * (1 + 0.1 * j) + 0.05 * k * j;
}

FeatureStatistics statistics(const torch::Tensor& features) {
  Moments moments;
  moments.add(features);
  return moments.statistics();
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Moments, AreMeanAndCovariance) {
  torch::manual_seed(0);
  // A mean far from 0 costs naive sums of squares all of their digits.
  const auto x = torch::randn({101, 5}, torch::kDouble) + 1e7;
  const auto mean = x.mean(0);
  const auto covariance = (x - mean).t().mm(x - mean) / 100;
  Moments whole;
  Moments parts;
  Moments more;
  whole.add(x);
  for (const auto& rows : x.narrow(0, 0, 60).split(7)) parts.add(rows);
  parts.add(x.narrow(0, 0, 0));
  for (const auto& rows : x.narrow(0, 60, 41).split(1)) more.add(rows);
  parts.merge(more);
  parts.merge(Moments());
  Moments empty;
  empty.merge(parts);
  for (const auto* moments : {&whole, &parts, &empty}) {
    EXPECT_EQ(moments->count(), 101);
    const auto found = moments->statistics();
    EXPECT_LT((found.mean - mean).abs().max().item<double>(), 1e-8);
    EXPECT_LT((found.covariance - covariance).abs().max().item<double>(), 1e-8);
  }
}

TEST(Moments, RefuseTooFewAndNotFinite) {
  Moments moments;
  EXPECT_THROW(moments.statistics(), Error);
  moments.add(torch::ones({1, 3}));
  EXPECT_NE(error_of([&] { moments.statistics(); }).find("2 images"), std::string::npos);
  auto bad = torch::ones({4, 3});
  bad[2][1] = NAN;
  EXPECT_NE(error_of([&] { moments.add(bad); }).find("first number 3"), std::string::npos);
  EXPECT_EQ(moments.count(), 1);
  EXPECT_THROW(moments.add(torch::ones({4, 2})), c10::Error);
}

// scipy.linalg.sqrtm gives 2.612623481329077; the singular pair (ranks 4 and 5 of 8) was computed
// with 50 digits, SciPy being right to 8 there.
TEST(FrechetDistance, AgreesWithIndependentNumbers) {
  EXPECT_NEAR(frechet_distance(statistics(made_up(40, 8, 0)), statistics(made_up(55, 8, 1))),
              2.6126234813290888, 1e-12);
  EXPECT_NEAR(frechet_distance(statistics(made_up(5, 8, 0)), statistics(made_up(6, 8, 1))),
              12.423338889470851, 1e-12);
}

TEST(FrechetDistance, HasClosedFormsItMeets) {
  const auto normal = [](const std::vector<double>& mean, const std::vector<double>& variance) {
    FeatureStatistics s;
    s.mean = torch::tensor(mean, torch::kDouble);
    s.covariance = torch::diag(torch::tensor(variance, torch::kDouble));
    return s;
  };
  // Diagonal: sums of (m1 - m2)^2 + (s1 - s2)^2.
  EXPECT_NEAR(frechet_distance(normal({0, 1, 2}, {1, 4, 0}), normal({1, 1, 0}, {9, 4, 25})),
              1 + 4 + 4 + 0 + 25, 1e-12);
  EXPECT_NEAR(frechet_distance(normal({0, 0}, {0, 0}), normal({3, 4}, {0, 0})), 25, 1e-12);
}

TEST(FrechetDistance, OfASetWithItselfIsNothing) {
  torch::manual_seed(1);
  // Fewer images than features, and scales from 1e-6 to 1e3.
  for (const int64_t n : {20, 500}) {
    const auto x =
        torch::randn({n, 200}, torch::kDouble) * torch::logspace(-6, 3, 200, 10, torch::kDouble);
    EXPECT_LT(frechet_distance(statistics(x), statistics(x)), 1e-6);
    EXPECT_LT(frechet_distance(statistics(x), statistics(x.flip(0))), 1e-6);
  }
}

TEST(FrechetDistance, RefusesWhatCannotBeCompared) {
  const auto a = statistics(made_up(9, 3, 0));
  auto b = statistics(made_up(9, 4, 0));
  EXPECT_NE(error_of([&] { frechet_distance(a, b); }).find("3 features and of 4"),
            std::string::npos);
  b = a;
  b.covariance = a.covariance.clone();
  b.covariance[1][1] = NAN;
  EXPECT_THROW(frechet_distance(a, b), Error);
  b.covariance = -a.covariance;
  EXPECT_THROW(frechet_distance(a, b), Error);
  auto c = a;
  c.settings = {{"weights", "1"}};
  EXPECT_EQ(frechet_distance(a, c), frechet_distance(a, a));
  auto d = a;
  d.settings = {{"weights", "2"}};
  EXPECT_NE(error_of([&] { frechet_distance(c, d); }).find("weights"), std::string::npos);
}

TEST(StatisticsFile, KeepsNumbersAndHowTheyWereMade) {
  const TempDir folder;
  const auto path = folder.path() / "s.npz";
  auto written = statistics(made_up(9, 4, 1));
  written.settings = {{"network", "n"}, {"resize", "r"}};
  written.source = "some images \"quoted\"";
  write_statistics(path, written);
  const auto read = read_statistics(path);
  EXPECT_TRUE(read.mean.equal(written.mean));
  EXPECT_TRUE(read.covariance.equal(written.covariance));
  EXPECT_EQ(read.count, 9);
  EXPECT_EQ(read.settings, written.settings);
  EXPECT_EQ(read.source, written.source);
  EXPECT_NO_THROW(require_made_with(read, written.settings, written.source, "s.npz"));
  const auto refusal = [&](const std::map<std::string, std::string>& settings,
                           const std::string& source) {
    return error_of([&] { require_made_with(read, settings, source, "s.npz"); });
  };
  EXPECT_EQ(refusal({{"network", "n"}, {"resize", "other"}}, written.source),
            "s.npz: made with resize \"r\", wanted \"other\"; make it anew");
  EXPECT_NE(refusal({{"network", "n"}}, written.source).find("resize"), std::string::npos);
  EXPECT_NE(
      refusal({{"network", "n"}, {"resize", "r"}, {"jpeg", "on"}}, written.source).find("jpeg"),
      std::string::npos);
  EXPECT_NE(refusal(written.settings, "other images").find("other images"), std::string::npos);
}

TEST(StatisticsFile, OfAnotherProgramIsReadButSaysNothing) {
  const TempDir folder;
  const auto path = folder.path() / "s.npz";
  const auto s = statistics(made_up(9, 4, 0));
  write_npz(path, {{"mu", s.mean.to(torch::kFloat)}, {"sigma", s.covariance}});
  const auto read = read_statistics(path);
  EXPECT_EQ(read.mean.scalar_type(), torch::kDouble);
  EXPECT_EQ(read.count, 0);
  EXPECT_TRUE(read.settings.empty());
  EXPECT_NE(error_of([&] { require_made_with(read, {}, "", "s.npz"); }).find("does not say"),
            std::string::npos);
}

TEST(StatisticsFile, ThatIsNoneIsNamed) {
  const TempDir folder;
  const auto path = folder.path() / "s.npz";
  const auto mu = torch::zeros({3}, torch::kDouble);
  const auto sigma = torch::eye(3, torch::kDouble);
  const auto refusal = [&](const std::map<std::string, torch::Tensor>& arrays) {
    write_npz(path, arrays);
    return error_of([&] { read_statistics(path); });
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_EQ(text.rfind(path.string(), 0), 0U) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal({{"mu", mu}}), "no array 'sigma'");
  expect(refusal({{"mu", sigma}, {"sigma", sigma}}), "'mu' is Double [3, 3]");
  expect(refusal({{"mu", mu}, {"sigma", torch::zeros({3, 2})}}), "[3, 3]");
  expect(refusal({{"mu", mu}, {"sigma", torch::zeros({3, 3}, torch::kLong)}}), "Long");
  expect(refusal({{"mu", mu / 0}, {"sigma", sigma}}), "not finite");
  expect(refusal({{"mu", mu}, {"sigma", sigma + torch::ones({3, 3}).triu(1)}}), "diagonal");
  expect(refusal({{"mu", mu}, {"sigma", sigma}, {"made", mu}}), "'made' is Double");
  const auto bytes = [](const std::string& text) {
    return torch::tensor(std::vector<uint8_t>(text.begin(), text.end()), torch::kByte);
  };
  expect(refusal({{"mu", mu}, {"sigma", sigma}, {"made", bytes("{")}}), "how the statistics");
  expect(refusal({{"mu", mu}, {"sigma", sigma}, {"made", bytes("{\"count\": []}")}}), "how the");
  EXPECT_THROW(read_statistics(folder.path() / "absent.npz"), Error);
}

// NumPy's value of the unbiased estimate over all 40 vectors of each set.
TEST(Kid, OfWholeSetsAgreesWithNumPy) {
  const auto found =
      kernel_inception_distance(made_up(40, 8, 0), made_up(40, 8, 1), {.subsets = 3});
  EXPECT_NEAR(found.mean, 0.27459438046048446, 1e-13);
  EXPECT_NEAR(found.std, 0, 1e-13);
}

TEST(Kid, OfSubsetsIsUnbiasedAndAFunctionOfTheSeed) {
  const auto x = made_up(40, 8, 0);
  const auto y = made_up(40, 8, 1);
  const KidConfig config{.subsets = 1000, .subset_size = 10, .seed = 5};
  const auto found = kernel_inception_distance(x, y, config);
  EXPECT_NEAR(found.mean, 0.27459438046048446, 4 * found.std / std::sqrt(1000.0));
  EXPECT_GT(found.std, 0.01);
  EXPECT_EQ(kernel_inception_distance(x, y, config).mean, found.mean);
  EXPECT_NE(kernel_inception_distance(x, y, {1000, 10, 6}).mean, found.mean);
  torch::manual_seed(2);
  const auto z = torch::randn({4000, 8}, torch::kDouble);
  const auto half = z.narrow(0, 0, 2000);
  const auto other = z.narrow(0, 2000, 2000);
  EXPECT_LT(std::abs(kernel_inception_distance(half, other, {.subsets = 10}).mean), 0.01);
}

TEST(Kid, RefusesTooFewAndNotFinite) {
  const auto x = made_up(5, 3, 0);
  EXPECT_THROW(kernel_inception_distance(x, x.narrow(0, 0, 1)), Error);
  EXPECT_THROW(kernel_inception_distance(x / 0, x), Error);
  EXPECT_THROW(kernel_inception_distance(x, made_up(5, 4, 0)), c10::Error);
}

// The definition, pair by pair.
double slow_share_near(const torch::Tensor& points, const torch::Tensor& centres, int64_t k) {
  const auto distance = [](const torch::Tensor& a, const torch::Tensor& b) {
    return (a - b).square().sum().item<double>();
  };
  std::vector<double> radius;
  for (int64_t i = 0; i < centres.size(0); ++i) {
    std::vector<double> others;
    for (int64_t j = 0; j < centres.size(0); ++j)
      if (j != i) others.push_back(distance(centres[i], centres[j]));
    std::sort(others.begin(), others.end());
    radius.push_back(others[static_cast<size_t>(k - 1)]);
  }
  int64_t near = 0;
  for (int64_t p = 0; p < points.size(0); ++p) {
    bool found = false;
    for (int64_t i = 0; i < centres.size(0); ++i)
      found |= distance(points[p], centres[i]) <= radius[static_cast<size_t>(i)];
    near += found ? 1 : 0;
  }
  return static_cast<double>(near) / static_cast<double>(points.size(0));
}

TEST(PrecisionRecall, IsTheDefinition) {
  torch::manual_seed(3);
  const auto real = torch::randn({60, 4}, torch::kDouble) + 100;
  const auto fake = torch::randn({50, 4}, torch::kDouble) * 0.7 + 100.5;
  for (const int64_t k : {1, 3, 5}) {
    const auto found = precision_recall(real, fake, k);
    EXPECT_EQ(found.precision, slow_share_near(fake, real, k));
    EXPECT_EQ(found.recall, slow_share_near(real, fake, k));
    EXPECT_GT(found.precision, found.recall);
    EXPECT_LT(found.recall, 1);
  }
}

// More rows than one chunk holds, in one dimension where the answer is plain: every real point is
// 1 from its neighbours, so radii are 2 (3 at an end); fakes lie 0.5 beside them or far away.
TEST(PrecisionRecall, OfManyPoints) {
  const auto real = torch::arange(3000, torch::kDouble).unsqueeze(1);
  auto fake = real + 0.5;
  fake.narrow(0, 0, 750) += 1e6;
  const auto found = precision_recall(real, fake);
  EXPECT_EQ(found.precision, 0.75);
  // Real points 749, 748.. below the first near fake, 750.5, are reached as far as its radius, 3.
  EXPECT_EQ(found.recall, (3000.0 - 748) / 3000);
}

TEST(PrecisionRecall, CountsCopiesAndRefusesTooFew) {
  const auto x = made_up(30, 6, 0) * 1e3;
  const auto copies = torch::cat({x, x, x, x});  // every radius is 0
  EXPECT_EQ(precision_recall(copies, x).precision, 1);
  EXPECT_EQ(precision_recall(copies, x + 1e-3).precision, 0);
  EXPECT_THROW(precision_recall(x.narrow(0, 0, 3), x), Error);
  EXPECT_NO_THROW(precision_recall(x.narrow(0, 0, 4), x));
  EXPECT_THROW(precision_recall(x, x / 0), Error);
}

}  // namespace
}  // namespace ddaebm
