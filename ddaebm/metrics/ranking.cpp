#include "ddaebm/metrics/ranking.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

// How many of each set share one score.
struct Tie {
  int64_t inside = 0;
  int64_t outside = 0;
};

// From the highest score to the lowest.
std::vector<Tie> ties(std::span<const double> inside, std::span<const double> outside) {
  if (inside.empty() || outside.empty()) {
    fail("{} scores inside and {} outside; a ranking needs one of each at least", inside.size(),
         outside.size());
  }
  std::vector<std::pair<double, bool>> scores;  // true: inside
  scores.reserve(inside.size() + outside.size());
  for (const double score : inside) scores.emplace_back(score, true);
  for (const double score : outside) scores.emplace_back(score, false);
  for (const auto& [score, is_inside] : scores) {
    if (std::isnan(score)) {
      fail("a score {} is NaN; has the training diverged?", is_inside ? "inside" : "outside");
    }
  }
  std::sort(scores.begin(), scores.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Tie> groups;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i == 0 || scores[i].first != scores[i - 1].first) groups.emplace_back();
    ++(scores[i].second ? groups.back().inside : groups.back().outside);
  }
  return groups;
}

}  // namespace

double auroc(std::span<const double> inside, std::span<const double> outside) {
  int64_t passed = 0;       // of `inside`, above the tie
  int64_t twice_above = 0;  // pairs, doubled so that halves stay whole
  for (const Tie& tie : ties(inside, outside)) {
    twice_above += tie.outside * (2 * passed + tie.inside);
    passed += tie.inside;
  }
  return static_cast<double>(twice_above) /
         (2.0 * static_cast<double>(inside.size()) * static_cast<double>(outside.size()));
}

double average_precision(std::span<const double> inside, std::span<const double> outside) {
  int64_t right = 0;
  int64_t wrong = 0;
  double sum = 0;
  for (const Tie& tie : ties(inside, outside)) {
    right += tie.inside;
    wrong += tie.outside;
    if (tie.inside == 0) continue;
    sum += static_cast<double>(tie.inside) * static_cast<double>(right) /
           static_cast<double>(right + wrong);
  }
  return sum / static_cast<double>(inside.size());
}

double false_positive_rate(std::span<const double> inside, std::span<const double> outside,
                           double wanted) {
  if (!(wanted > 0 && wanted <= 1)) {
    fail("a true positive rate of {} was wanted; it lies above 0 and is 1 at most", wanted);
  }
  int64_t right = 0;
  int64_t wrong = 0;
  for (const Tie& tie : ties(inside, outside)) {
    right += tie.inside;
    wrong += tie.outside;
    if (static_cast<double>(right) / static_cast<double>(inside.size()) >= wanted) break;
  }
  return static_cast<double>(wrong) / static_cast<double>(outside.size());
}

}  // namespace ddaebm
