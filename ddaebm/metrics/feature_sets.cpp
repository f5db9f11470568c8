#include "ddaebm/metrics/feature_sets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

torch::Tensor checked(const torch::Tensor& features, const char* name, int64_t least) {
  TORCH_CHECK(features.dim() == 2 && features.size(1) > 0 && features.is_floating_point(), name,
              " features are ", features.scalar_type(), " ", features.sizes(),
              ", [N, D] is wanted");
  if (features.size(0) < least) {
    fail("{} {} feature vectors; {} at least are needed", features.size(0), name, least);
  }
  auto x = features.detach().to(torch::kDouble);
  if (!x.isfinite().all().item<bool>()) {
    fail("the {} features hold numbers that are not finite; are the images sound?", name);
  }
  return x;
}

// `size` different rows. The engine's numbers, and so the subsets, are the same on every machine.
torch::Tensor random_rows(const torch::Tensor& x, int64_t size, std::mt19937_64& engine) {
  std::vector<int64_t> rows(static_cast<size_t>(x.size(0)));
  std::iota(rows.begin(), rows.end(), 0);
  for (size_t i = 0; i < static_cast<size_t>(size); ++i) {
    std::swap(rows[i], rows[i + engine() % (rows.size() - i)]);
  }
  rows.resize(static_cast<size_t>(size));
  return x.index_select(0, torch::tensor(rows, torch::kLong).to(x.device()));
}

torch::Tensor kernel(const torch::Tensor& x, const torch::Tensor& y) {
  return (x.mm(y.t()) / static_cast<double>(x.size(1)) + 1).pow(3);
}

double unbiased_discrepancy(const torch::Tensor& x, const torch::Tensor& y) {
  const auto n = static_cast<double>(x.size(0));
  const auto within = [&](const torch::Tensor& a) {
    const auto table = kernel(a, a);
    return (table.sum() - table.trace()) / (n * (n - 1));
  };
  return (within(x) + within(y) - 2 * kernel(x, y).mean()).item<double>();
}

// Rows of a table with `columns` numbers that take 64 MB.
int64_t chunk_rows(int64_t columns) {
  return std::max<int64_t>(1, (int64_t{1} << 23) / std::max<int64_t>(1, columns));
}

// [N, M]. Through one matrix product; equal vectors come out as 0, not as its rounding.
torch::Tensor squared_distances(const torch::Tensor& x, const torch::Tensor& y) {
  const auto scale = x.square().sum(1, /*keepdim=*/true) + y.square().sum(1);
  const auto squares = scale - 2 * x.mm(y.t());
  return squares.masked_fill_(squares < 1e-13 * scale, 0);
}

// Squared distance of each vector to its k-th nearest neighbour, itself not counted.
torch::Tensor radii(const torch::Tensor& x, int64_t k) {
  std::vector<torch::Tensor> parts;
  int64_t first = 0;
  for (const auto& rows : x.split(chunk_rows(x.size(0)))) {
    auto squares = squared_distances(rows, x);
    squares.diagonal(first).fill_(std::numeric_limits<double>::infinity());
    parts.push_back(
        std::get<0>(squares.topk(k, 1, /*largest=*/false, /*sorted=*/true)).select(1, k - 1));
    first += rows.size(0);
  }
  return torch::cat(parts);
}

// Share of `points` that lie within the radius of one of `centres`.
double share_near(const torch::Tensor& points, const torch::Tensor& centres,
                  const torch::Tensor& squared_radii) {
  int64_t near = 0;
  for (const auto& rows : points.split(chunk_rows(centres.size(0)))) {
    near += (squared_distances(rows, centres) <= squared_radii).any(1).sum().item<int64_t>();
  }
  return static_cast<double>(near) / static_cast<double>(points.size(0));
}

}  // namespace

Kid kernel_inception_distance(const torch::Tensor& real, const torch::Tensor& fake,
                              const KidConfig& config) {
  TORCH_CHECK(config.subsets > 0 && config.subset_size > 1, "KID over ", config.subsets,
              " subsets of ", config.subset_size);
  const auto x = checked(real, "real", 2);
  const auto y = checked(fake, "fake", 2).to(x.device());
  TORCH_CHECK(x.size(1) == y.size(1), "KID of ", x.sizes(), " and ", y.sizes());
  const int64_t size = std::min({config.subset_size, x.size(0), y.size(0)});
  std::mt19937_64 engine(config.seed);
  std::vector<double> values;
  for (int64_t i = 0; i < config.subsets; ++i) {
    const auto some_real = random_rows(x, size, engine);
    values.push_back(unbiased_discrepancy(some_real, random_rows(y, size, engine)));
  }
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / n)};
}

PrecisionRecall precision_recall(const torch::Tensor& real, const torch::Tensor& fake, int64_t k) {
  TORCH_CHECK(k > 0, "precision and recall with ", k, " neighbours");
  auto x = checked(real, "real", k + 1);
  auto y = checked(fake, "fake", k + 1).to(x.device());
  TORCH_CHECK(x.size(1) == y.size(1), "precision of ", x.sizes(), " and ", y.sizes());
  // Small numbers keep the matrix product exact.
  const auto centre = x.mean(0);
  x = x - centre;
  y = y - centre;
  return {share_near(y, x, radii(x, k)), share_near(x, y, radii(y, k))};
}

}  // namespace ddaebm
