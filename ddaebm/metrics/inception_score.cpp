#include "ddaebm/metrics/inception_score.h"

#include <cmath>
#include <vector>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

// The mean KL is the entropy of the mean less the mean entropy; so it needs one pass.
double score(const torch::Tensor& logits) {
  const auto entropy = [](const torch::Tensor& p) { return -torch::xlogy(p, p).sum(-1); };
  constexpr int64_t kRows = 4096;
  const auto n = static_cast<double>(logits.size(0));
  auto mean = torch::zeros({logits.size(1)}, logits.options().dtype(torch::kDouble));
  double own = 0;
  for (const auto& rows : logits.split(kRows)) {
    const auto p = rows.to(torch::kDouble).softmax(1);
    mean += p.sum(0) / n;
    own += entropy(p).sum().item<double>() / n;
  }
  return std::exp(entropy(mean).item<double>() - own);
}

}  // namespace

InceptionScore inception_score(const torch::Tensor& logits, int64_t parts) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(1) > 0 && logits.is_floating_point() && parts > 0,
              "Inception score of ", logits.scalar_type(), " ", logits.sizes(), " in ", parts);
  const int64_t n = logits.size(0);
  if (n < parts) fail("an Inception score in {} parts of {} images", parts, n);
  if (!logits.isfinite().all().item<bool>()) {
    fail("the classes' logits are not all finite; are the images sound?");
  }
  const torch::NoGradGuard no_grad;
  std::vector<double> scores;
  InceptionScore out;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = i * n / parts;
    scores.push_back(score(logits.slice(0, first, (i + 1) * n / parts)));
    out.mean += scores.back() / static_cast<double>(parts);
  }
  for (const double value : scores) out.std += std::pow(value - out.mean, 2);
  out.std = std::sqrt(out.std / static_cast<double>(parts));
  return out;
}

}  // namespace ddaebm
