#include "ddaebm/metrics/ranking.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
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

// From the highest score to the lowest. `places`, where given, takes the tie of each score of
// `inside`, then of each of `outside`.
std::vector<Tie> ties(std::span<const double> inside, std::span<const double> outside,
                      std::vector<size_t>* places = nullptr) {
  if (inside.empty() || outside.empty()) {
    fail("{} scores inside and {} outside; a ranking needs one of each at least", inside.size(),
         outside.size());
  }
  std::vector<std::pair<double, size_t>> scores;  // and which it is, `inside` first
  scores.reserve(inside.size() + outside.size());
  for (const double score : inside) scores.emplace_back(score, scores.size());
  for (const double score : outside) scores.emplace_back(score, scores.size());
  for (const auto& [score, which] : scores) {
    if (std::isnan(score)) {
      fail("a score {} is NaN; has the training diverged?",
           which < inside.size() ? "inside" : "outside");
    }
  }
  std::sort(scores.begin(), scores.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  if (places != nullptr) places->resize(scores.size());
  std::vector<Tie> groups;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i == 0 || scores[i].first != scores[i - 1].first) groups.emplace_back();
    ++(scores[i].second < inside.size() ? groups.back().inside : groups.back().outside);
    if (places != nullptr) (*places)[scores[i].second] = groups.size() - 1;
  }
  return groups;
}

double auroc(const std::vector<Tie>& ties, size_t inside, size_t outside) {
  int64_t passed = 0;       // of `inside`, above the tie
  int64_t twice_above = 0;  // pairs, doubled so that halves stay whole
  for (const Tie& tie : ties) {
    twice_above += tie.outside * (2 * passed + tie.inside);
    passed += tie.inside;
  }
  return static_cast<double>(twice_above) /
         (2.0 * static_cast<double>(inside) * static_cast<double>(outside));
}

double average_precision(const std::vector<Tie>& ties, size_t inside) {
  int64_t right = 0;
  int64_t wrong = 0;
  double sum = 0;
  for (const Tie& tie : ties) {
    right += tie.inside;
    wrong += tie.outside;
    if (tie.inside == 0) continue;
    sum += static_cast<double>(tie.inside) * static_cast<double>(right) /
           static_cast<double>(right + wrong);
  }
  return sum / static_cast<double>(inside);
}

double false_positive_rate(const std::vector<Tie>& ties, size_t inside, size_t outside,
                           double wanted) {
  int64_t right = 0;
  int64_t wrong = 0;
  for (const Tie& tie : ties) {
    right += tie.inside;
    wrong += tie.outside;
    if (static_cast<double>(right) / static_cast<double>(inside) >= wanted) break;
  }
  return static_cast<double>(wrong) / static_cast<double>(outside);
}

constexpr double kTruePositives = 0.95;

}  // namespace

double auroc(std::span<const double> inside, std::span<const double> outside) {
  return auroc(ties(inside, outside), inside.size(), outside.size());
}

double average_precision(std::span<const double> inside, std::span<const double> outside) {
  return average_precision(ties(inside, outside), inside.size());
}

double false_positive_rate(std::span<const double> inside, std::span<const double> outside,
                           double wanted) {
  if (!(wanted > 0 && wanted <= 1)) {
    fail("a true positive rate of {} was wanted; it lies above 0 and is 1 at most", wanted);
  }
  return false_positive_rate(ties(inside, outside), inside.size(), outside.size(), wanted);
}

Separation separation(std::span<const double> inside, std::span<const double> outside,
                      const Bootstrap& bootstrap) {
  const size_t n = inside.size();
  const size_t m = outside.size();
  if (n < 2 || m < 2) {
    fail("{} scores inside and {} outside; an interval needs two of each at least", n, m);
  }
  if (bootstrap.resamples < 1 || !(bootstrap.coverage > 0 && bootstrap.coverage < 1)) {
    fail("{} resamples for {} of them; expected one at least and a share between 0 and 1",
         bootstrap.resamples, bootstrap.coverage);
  }
  std::vector<size_t> places;
  const auto real = ties(inside, outside, &places);
  std::vector<double> areas;
  std::vector<double> precisions;
  std::vector<double> rates;
  // Sorted once: a resample changes how many of each tie there are, not their order.
  std::mt19937_64 engine(bootstrap.seed);
  for (int64_t i = 0; i < bootstrap.resamples; ++i) {
    std::vector<Tie> drawn(real.size());
    for (size_t k = 0; k < n; ++k) ++drawn[places[engine() % n]].inside;
    for (size_t k = 0; k < m; ++k) ++drawn[places[n + engine() % m]].outside;
    areas.push_back(auroc(drawn, n, m));
    precisions.push_back(average_precision(drawn, n));
    rates.push_back(false_positive_rate(drawn, n, m, kTruePositives));
  }
  const auto interval = [&](double value, std::vector<double>& all) {
    std::sort(all.begin(), all.end());
    const double cut = 0.5 * (1 - bootstrap.coverage) * static_cast<double>(all.size() - 1);
    const auto skipped = static_cast<size_t>(cut);
    return Interval{value, all[skipped], all[all.size() - 1 - skipped]};
  };
  return {interval(auroc(real, n, m), areas), interval(average_precision(real, n), precisions),
          interval(false_positive_rate(real, n, m, kTruePositives), rates)};
}

double false_alarm_threshold(std::span<const double> inside, double rate) {
  if (!(rate >= 0 && rate < 1)) {
    fail("a false alarm rate of {} was wanted; it is 0 at least and below 1", rate);
  }
  if (inside.empty()) fail("no scores; a threshold needs one at least");
  if (std::any_of(inside.begin(), inside.end(), [](double score) { return std::isnan(score); })) {
    fail("a score is NaN; has the training diverged?");
  }
  std::vector<double> sorted(inside.begin(), inside.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted[static_cast<size_t>(rate * static_cast<double>(sorted.size()))];
}

}  // namespace ddaebm
