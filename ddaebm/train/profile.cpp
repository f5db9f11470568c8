#include "ddaebm/train/profile.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "ddaebm/error.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

// A number more whenever profiles mean something else: what is kept of others must not be used.
const std::map<std::string, std::string> kFormat = {{"format", "ddaebm usual profiles 3"}};

// Distances are taken in the directions in which profiles vary most: in many more, all are as far
// apart.
constexpr int64_t kWidest = 64;

// Which neighbour says how usual profiles of so many numbers are. Of few numbers it takes several
// to tell how many there are about; of many, the nearest tell most.
int64_t which_nearest(int64_t numbers) { return std::clamp<int64_t>(64 / numbers, 2, 20); }

torch::Tensor log_norm(const torch::Tensor& x) {
  return x.flatten(1).norm(2, 1).clamp_min(1e-30).log();
}

// What averages over squares of 2 x 2 pixels leave out, [N, C, H, W], again and again; at last the
// averages. Of vectors, themselves.
std::vector<torch::Tensor> octaves(torch::Tensor x) {
  constexpr int64_t kLeast = 4;  // pixels along a side that are worth halving
  std::vector<torch::Tensor> found;
  while (x.dim() == 4 && x.size(2) % 2 == 0 && x.size(3) % 2 == 0 &&
         std::min(x.size(2), x.size(3)) >= kLeast) {
    const auto coarse = torch::avg_pool2d(x, 2);
    found.push_back(x - coarse.repeat_interleave(2, 2).repeat_interleave(2, 3));
    x = coarse;
  }
  found.push_back(x);
  return found;
}

}  // namespace

torch::Tensor energy_profiles(Model& model, const torch::Tensor& data) {
  constexpr int64_t kAtOnce = 1000;  // gradients are as large as the data
  const auto progress = std::exchange(model.progress, nullptr);
  std::vector<torch::Tensor> parts;
  for (int64_t from = 0; from < data.size(0); from += kAtOnce) {
    const auto rows = data.slice(0, from, std::min(from + kAtOnce, data.size(0)));
    const auto first = model.log_density_and_gradient(rows, 0);
    std::vector<torch::Tensor> columns = {first.value};
    for (int64_t t = 1; t < model.times(); ++t) columns.push_back(model.log_density_at(rows, t));
    for (const auto& octave : octaves(first.gradient)) columns.push_back(log_norm(octave));
    auto profiles = torch::stack(columns, 1);
    const auto features = model.features(rows);
    if (features.defined()) profiles = torch::cat({profiles, features}, 1);
    parts.push_back(profiles);
    if (progress) progress(from + rows.size(0), data.size(0));
  }
  model.progress = progress;
  if (parts.empty()) fail("no data to learn usual energies from");
  return torch::cat(parts);
}

UsualProfiles::UsualProfiles(const torch::Tensor& profiles) {
  const int64_t rows = profiles.size(0);
  const int64_t wanted = 10 * profiles.size(1);
  if (rows < wanted) {
    fail("{} data to learn usual energies from, {} at least are needed", rows, wanted);
  }
  if (!torch::isfinite(profiles).all().item<bool>()) {
    fail("energies of data to learn from, or their gradients, are not finite");
  }
  mean_ = profiles.mean(0);
  const auto centred = profiles - mean_;
  const auto covariance = centred.t().mm(centred) / static_cast<double>(rows - 1);
  // Columns that follow from others have no spread of their own, up to rounding; a datum off by
  // more than that is still unusual.
  const auto spread = torch::max(covariance.diagonal().sqrt(), 1e-9 * (1 + mean_.abs()));
  const auto correlation = covariance / spread.outer(spread);
  const auto [variances, directions] = torch::linalg_eigh(correlation, "L");
  whiten_ = (directions / variances.clamp_min(1e-6).sqrt() / spread.unsqueeze(1))
                .flip(1)
                .slice(1, 0, kWidest);
  learnt_ = centred.mm(whiten_).to(torch::kFloat).to(torch::kDouble);  // as they are kept
}

std::vector<double> UsualProfiles::scores(const torch::Tensor& profiles) const {
  if (profiles.size(1) != mean_.size(0)) {
    fail(
        "profiles of {} numbers, those learnt have {}; learn them anew with `ddaebm ood "
        "--reference`",
        profiles.size(1), mean_.size(0));
  }
  constexpr int64_t kAtOnce = 256;  // beside all that were learnt
  const int64_t k = std::min(which_nearest(mean_.size(0)), learnt_.size(0));
  std::vector<double> found;
  for (const auto& some : (profiles - mean_).mm(whiten_).split(kAtOnce)) {
    const auto distance = std::get<0>(torch::cdist(some, learnt_).kthvalue(k, 1));
    const auto part = numbers_of(-distance.clamp_min(1e-30).log());
    found.insert(found.end(), part.begin(), part.end());
  }
  return found;
}

void UsualProfiles::save(const std::filesystem::path& file) const {
  write_safetensors(
      file,
      {{{"mean", mean_}, {"whiten", whiten_.contiguous()}, {"learnt", learnt_.to(torch::kFloat)}},
       kFormat});
}

UsualProfiles UsualProfiles::load(const std::filesystem::path& file) {
  const auto read = read_safetensors(file);
  const auto tensor = [&](const char* name, torch::ScalarType type) {
    const auto found = read.tensors.find(name);
    const bool right = found != read.tensors.end() && found->second.scalar_type() == type;
    return right ? found->second : torch::Tensor();
  };
  UsualProfiles usual;
  usual.mean_ = tensor("mean", torch::kDouble);
  usual.whiten_ = tensor("whiten", torch::kDouble);
  usual.learnt_ = tensor("learnt", torch::kFloat);
  const auto has_shape = [&] {
    const auto& [mean, whiten, learnt] = std::tie(usual.mean_, usual.whiten_, usual.learnt_);
    if (!mean.defined() || !whiten.defined() || !learnt.defined()) return false;
    if (mean.dim() != 1 || learnt.dim() != 2) return false;
    const int64_t width = mean.size(0);
    return whiten.sizes() == at::IntArrayRef({width, std::min(width, kWidest)}) &&
           learnt.size(0) >= 10 * width && learnt.size(1) == whiten.size(1);
  };
  if (read.metadata != kFormat || !has_shape()) {
    fail(
        "{}: not what this version of `ddaebm ood --reference --false-alarm` keeps; write it anew "
        "with that",
        file.string());
  }
  usual.learnt_ = usual.learnt_.to(torch::kDouble);
  return usual;
}

}  // namespace ddaebm
