#include "ddaebm/data/toy_parts.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace ddaebm::toy {

torch::Tensor part_of_batch(int64_t n, int64_t parts, const Random& random) {
  const int64_t first = random.first_row(n);
  return torch::arange(first, first + n, torch::TensorOptions(torch::kLong).device(random.device()))
      .remainder(parts);
}

torch::Tensor in_chunks(const torch::Tensor& x, int64_t columns,
                        const std::function<torch::Tensor(const torch::Tensor&)>& f) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == 2, "points must be [N, 2], not ", x.sizes());
  constexpr int64_t kNumbers = int64_t{1} << 19;
  const int64_t rows = std::max<int64_t>(1, kNumbers / columns);
  std::vector<torch::Tensor> parts;
  for (const auto& piece : x.split(rows)) parts.push_back(f(piece.to(torch::kDouble)));
  return torch::cat(parts).to(x.scalar_type());
}

torch::Tensor mixture_log_density(const torch::Tensor& x, const torch::Tensor& centres,
                                  const torch::Tensor& log_weights, double std) {
  // |x - c|^2 = |x|^2 - 2 x.c + |c|^2, of which only the middle needs a table [N, M].
  const double variance = std * std;
  auto slopes = centres / variance;
  auto offsets =
      log_weights - 0.5 * (centres * slopes).sum(1) - std::log(2 * std::numbers::pi * variance);
  slopes = slopes.t().to(x.device());
  offsets = offsets.to(x.device());
  return in_chunks(x, centres.size(0), [&](const torch::Tensor& points) {
    return torch::logsumexp(torch::addmm(offsets, points, slopes), 1) -
           points.square().sum(1) / (2 * variance);
  });
}

Rule gauss_legendre(double low, double high, int64_t count) {
  // Golub and Welsch: the nodes are the eigenvalues of the Jacobi matrix of the Legendre
  // polynomials, the weights the squares of the eigenvectors' first components.
  auto k = torch::arange(1, count, torch::kDouble);
  auto off_diagonal = k / (4 * k.square() - 1).sqrt();
  auto [values, vectors] = torch::linalg_eigh(torch::diag(off_diagonal, -1), "L");
  return {low + (values + 1) * ((high - low) / 2), vectors[0].square() * (high - low)};
}

}  // namespace ddaebm::toy
