#include "ddaebm/metrics/fid.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/npy.h"

namespace ddaebm {
namespace {

// A factor R [D, rank] with R R^T = covariance. Eigenvalues that are no more than rounding are left
// out: their roots would not be small.
torch::Tensor factor(const torch::Tensor& covariance) {
  const auto [values, vectors] = torch::linalg_eigh(covariance, "L");
  const double largest = values.max().item<double>();
  const double least = values.min().item<double>();
  if (least < -1e-3 * std::max(largest, 0.0)) {
    fail("a covariance has the eigenvalue {:.3g} beside {:.3g}; no data have that: is it damaged?",
         least, largest);
  }
  const double rounding =
      largest * static_cast<double>(values.size(0)) * std::numeric_limits<double>::epsilon();
  const auto kept = (values > std::max(rounding, 0.0)).nonzero().view({-1});
  return vectors.index_select(1, kept) * values.index_select(0, kept).sqrt();
}

// The first setting in which two differ, in words; empty where they agree.
std::string difference(const std::map<std::string, std::string>& found,
                       const std::map<std::string, std::string>& wanted) {
  for (const auto& [key, value] : wanted) {
    const auto other = found.find(key);
    if (other == found.end()) return fmt::format("no '{}', wanted {}", key, excerpt(value));
    if (other->second != value) {
      return fmt::format("{} {}, wanted {}", key, excerpt(other->second), excerpt(value));
    }
  }
  for (const auto& [key, value] : found) {
    if (wanted.count(key) == 0) return fmt::format("{} {}, wanted none", key, excerpt(value));
  }
  return "";
}

// `mu` and `sigma` of a file that is not trusted.
torch::Tensor array(const std::string& where, const std::map<std::string, torch::Tensor>& arrays,
                    const std::string& name, int64_t dimensions) {
  const auto found = arrays.find(name);
  if (found == arrays.end()) {
    fail("{}: there is no array '{}'; statistics have 'mu' and 'sigma'", where, name);
  }
  const auto& tensor = found->second;
  if (!tensor.is_floating_point() || tensor.dim() != dimensions || tensor.numel() == 0) {
    fail("{}: '{}' is {} [{}]; {} is wanted", where, name, c10::toString(tensor.scalar_type()),
         fmt::join(tensor.sizes(), ", "),
         dimensions == 1 ? "floating-point [D]" : "floating-point [D, D]");
  }
  auto values = tensor.to(torch::kDouble);
  if (!values.isfinite().all().item<bool>()) {
    fail("{}: '{}' holds numbers that are not finite", where, name);
  }
  return values;
}

void parse_made(const std::string& where, const torch::Tensor& bytes,
                FeatureStatistics& statistics) {
  if (bytes.scalar_type() != torch::kByte || bytes.dim() != 1) {
    fail("{}: 'made' is {} [{}]; uint8 [length] with JSON text is wanted", where,
         c10::toString(bytes.scalar_type()), fmt::join(bytes.sizes(), ", "));
  }
  const auto text = packed(bytes);
  try {
    const auto json = nlohmann::json::parse(bytes_of(text));
    statistics.count = json.at("count").get<int64_t>();
    statistics.settings = json.at("settings").get<std::map<std::string, std::string>>();
    statistics.source = json.at("source").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    fail("{}: 'made' does not say how the statistics were made: {}; make them anew", where,
         excerpt(error.what()));
  }
}

}  // namespace

void Moments::add(const torch::Tensor& features) {
  TORCH_CHECK(features.dim() == 2 && features.size(1) > 0 && features.is_floating_point(),
              "moments of ", features.scalar_type(), " ", features.sizes(), ", [N, D] is wanted");
  if (features.size(0) == 0) return;
  const torch::NoGradGuard no_grad;
  const auto x = features.to(mean_.defined() ? mean_.device() : features.device(), torch::kDouble);
  const auto bad = (~x.isfinite().all(1)).nonzero();
  if (bad.size(0) > 0) {
    fail("{} of {} feature vectors are not finite, first number {}; are the images sound?",
         bad.size(0), x.size(0), count_ + bad[0][0].item<int64_t>());
  }
  const auto mean = x.mean(0);
  const auto centred = x - mean;
  join(x.size(0), mean, centred.t().mm(centred));
}

void Moments::merge(const Moments& other) {
  if (other.count_ > 0) join(other.count_, other.mean_, other.scatter_);
}

void Moments::join(int64_t count, const torch::Tensor& mean, const torch::Tensor& scatter) {
  if (count_ == 0) {
    mean_ = mean.clone();
    scatter_ = scatter.clone();
    count_ = count;
    return;
  }
  TORCH_CHECK(mean.size(0) == mean_.size(0), "features of ", mean.size(0), " numbers after ",
              mean_.size(0));
  const double share = static_cast<double>(count) / static_cast<double>(count_ + count);
  const auto shift = mean.to(mean_.device()) - mean_;
  scatter_ += scatter.to(scatter_.device());
  scatter_.addr_(shift, shift, /*beta=*/1, /*alpha=*/share * static_cast<double>(count_));
  mean_ += shift * share;
  count_ += count;
}

FeatureStatistics Moments::statistics(std::map<std::string, std::string> settings,
                                      std::string source) const {
  if (count_ < 2) fail("a covariance needs 2 images at least, there are {}", count_);
  return {mean_.cpu().clone(), (scatter_ / static_cast<double>(count_ - 1)).cpu(), count_,
          std::move(settings), std::move(source)};
}

double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b) {
  if (a.mean.size(0) != b.mean.size(0)) {
    fail("statistics of {} features and of {}; a distance needs the same network on both sides",
         a.mean.size(0), b.mean.size(0));
  }
  if (!a.settings.empty() && !b.settings.empty()) {
    const std::string differ = difference(b.settings, a.settings);
    if (!differ.empty()) {
      fail("statistics made in different ways have no distance: {}; make both anew", differ);
    }
  }
  for (const auto* side : {&a, &b}) {
    if (!side->mean.isfinite().all().item<bool>() ||
        !side->covariance.isfinite().all().item<bool>()) {
      fail("statistics hold numbers that are not finite; are the images sound?");
    }
  }
  // With S = R R^T the wanted trace is the sum of the singular values of R1^T R2. Roots of the
  // eigenvalues of the product S1 S2 would lose half of the digits.
  const auto product = factor(a.covariance).t().mm(factor(b.covariance));
  const double overlap =
      product.numel() == 0 ? 0.0 : torch::linalg_svdvals(product).sum().item<double>();
  const double shift = (a.mean - b.mean).square().sum().item<double>();
  const double spread = (a.covariance.trace() + b.covariance.trace()).item<double>();
  return std::max(0.0, shift + spread - 2 * overlap);  // rounding can go below
}

void write_statistics(const std::filesystem::path& path, const FeatureStatistics& statistics) {
  const nlohmann::json made = {{"count", statistics.count},
                               {"settings", statistics.settings},
                               {"source", statistics.source}};
  const std::string text = made.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  write_npz(path, {{"mu", statistics.mean},
                   {"sigma", statistics.covariance},
                   {"made", from_packed(text, {static_cast<int64_t>(text.size())}, torch::kByte)}});
}

FeatureStatistics read_statistics(const std::filesystem::path& path) {
  const std::string where = path.string();
  const auto arrays = read_npz(path);
  FeatureStatistics statistics;
  statistics.mean = array(where, arrays, "mu", 1);
  statistics.covariance = array(where, arrays, "sigma", 2);
  const int64_t width = statistics.mean.size(0);
  const auto& sigma = statistics.covariance;
  if (sigma.size(0) != width || sigma.size(1) != width) {
    fail("{}: 'mu' has {} numbers, so 'sigma' must be [{}, {}]; it is [{}]", where, width, width,
         width, fmt::join(sigma.sizes(), ", "));
  }
  const double asymmetry = (sigma - sigma.t()).abs().max().item<double>();
  if (asymmetry > 1e-5 * sigma.abs().max().item<double>()) {
    fail("{}: 'sigma' is no covariance: entries across its diagonal differ by {:.3g}", where,
         asymmetry);
  }
  if (const auto made = arrays.find("made"); made != arrays.end()) {
    parse_made(where, made->second, statistics);
  }
  return statistics;
}

void require_made_with(const FeatureStatistics& statistics,
                       const std::map<std::string, std::string>& settings,
                       const std::string& source, const std::string& name) {
  if (statistics.settings.empty()) {
    fail("{}: does not say how it was made (another program wrote it?); make it anew", name);
  }
  const std::string differ = difference(statistics.settings, settings);
  if (!differ.empty()) fail("{}: made with {}; make it anew", name, differ);
  if (statistics.source != source) {
    fail("{}: made from {}, wanted {}; make it anew", name, excerpt(statistics.source),
         excerpt(source));
  }
}

}  // namespace ddaebm
