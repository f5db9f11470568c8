#include "ddaebm/metrics/ranking.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

using Scores = std::vector<double>;

// The definitions, pair by pair and threshold by threshold.
double slow_auroc(const Scores& inside, const Scores& outside) {
  double sum = 0;
  for (const double a : inside)
    for (const double b : outside) sum += a > b ? 1.0 : a == b ? 0.5 : 0.0;
  return sum / static_cast<double>(inside.size() * outside.size());
}

double let_in(const Scores& scores, double threshold) {
  double n = 0;
  for (const double score : scores) n += score >= threshold ? 1 : 0;
  return n;
}

double slow_average_precision(const Scores& inside, const Scores& outside) {
  double sum = 0;  // each positive brings the precision at its own score
  for (const double score : inside) {
    const double right = let_in(inside, score);
    sum += right / (right + let_in(outside, score));
  }
  return sum / static_cast<double>(inside.size());
}

double slow_false_positive_rate(const Scores& inside, const Scores& outside, double wanted) {
  double best = 1;
  for (const double threshold : inside) {
    if (let_in(inside, threshold) / static_cast<double>(inside.size()) >= wanted)
      best = std::min(best, let_in(outside, threshold) / static_cast<double>(outside.size()));
  }
  return best;
}

TEST(Ranking, ByHand) {
  const Scores inside = {3, 2, 2, 0};
  const Scores outside = {2, 1, 1};
  // 3 beats 3; each 2 ties once and beats 2; 0 beats none.
  EXPECT_DOUBLE_EQ(auroc(inside, outside), (3 + 2.5 + 2.5 + 0) / 12);
  // At 3: precision 1 for one; at 2: 3 of 4 for two; at 0: 4 of 7 for one.
  EXPECT_DOUBLE_EQ(average_precision(inside, outside), (1 + 2 * 0.75 + 4.0 / 7) / 4);
  EXPECT_DOUBLE_EQ(false_positive_rate(inside, outside, 0.75), 1.0 / 3);
  EXPECT_DOUBLE_EQ(false_positive_rate(inside, outside, 0.76), 1);
  EXPECT_DOUBLE_EQ(false_positive_rate(inside, outside, 0.25), 0);
}

// Numbers of scikit-learn 1.x: roc_auc_score, average_precision_score and roc_curve.
TEST(Ranking, AgreesWithScikitLearnOnTies) {
  Scores inside;
  Scores outside;
  for (int k = 0; k < 60; ++k) inside.push_back(k * 37 % 23 + 4);
  for (int k = 0; k < 45; ++k) outside.push_back(k * 29 % 19);
  EXPECT_NEAR(auroc(inside, outside), 0.7555555555555555, 1e-15);
  EXPECT_NEAR(average_precision(inside, outside), 0.8229778775148389, 1e-15);
  EXPECT_NEAR(false_positive_rate(inside, outside), 0.6888888888888889, 1e-15);
}

TEST(Ranking, IsTheDefinition) {
  std::mt19937 engine(1);
  for (int round = 0; round < 50; ++round) {
    const unsigned values = 2 + engine() % 40;  // few values: many ties
    Scores inside(1 + engine() % 60);
    Scores outside(1 + engine() % 60);
    for (auto& score : inside) score = 0.1 * (engine() % values + 1);
    for (auto& score : outside) score = 0.1 * (engine() % values);
    EXPECT_NEAR(auroc(inside, outside), slow_auroc(inside, outside), 1e-14);
    EXPECT_NEAR(average_precision(inside, outside), slow_average_precision(inside, outside), 1e-14);
    for (const double wanted : {0.5, 0.95, 1.0}) {
      EXPECT_EQ(false_positive_rate(inside, outside, wanted),
                slow_false_positive_rate(inside, outside, wanted));
    }
  }
}

TEST(Ranking, Extremes) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(auroc(Scores{2, inf}, Scores{1, -inf}), 1);
  EXPECT_EQ(auroc(Scores{1, -inf}, Scores{2, inf}), 0);
  EXPECT_EQ(auroc(Scores{inf}, Scores{inf, inf}), 0.5);
  EXPECT_EQ(average_precision(Scores{5}, Scores{5, 5, 5}), 0.25);
  // 10^10 pairs are counted without loss.
  Scores inside(100001, 1);
  Scores outside(100000, 0);
  outside[0] = 1;
  EXPECT_EQ(auroc(inside, outside), 1 - 0.5 / 100000);
}

TEST(Ranking, RefusesEmptySetsAndNan) {
  const Scores some = {1, 2};
  EXPECT_THROW(auroc(Scores{}, some), Error);
  EXPECT_THROW(auroc(some, Scores{}), Error);
  EXPECT_THROW(average_precision(some, Scores{1, std::nan("")}), Error);
  EXPECT_THROW(false_positive_rate(Scores{std::nan("")}, some), Error);
  EXPECT_THROW(false_positive_rate(some, some, 0), Error);
  EXPECT_THROW(false_positive_rate(some, some, 1.01), Error);
}

}  // namespace
}  // namespace ddaebm
