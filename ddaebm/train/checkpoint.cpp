#include "ddaebm/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "ddaebm/error.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

constexpr const char* kFormat = "ddaebm checkpoint 1";
constexpr std::string_view kPrefix = "checkpoint-";

int64_t to_int(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

// A file that says it is a checkpoint of ours.
struct Checkpoint {
  explicit Checkpoint(const std::filesystem::path& p)
      : path(p.string()), file(read_safetensors(p)) {
    if (note("format") != kFormat) {
      fail("{}: its format is '{}', expected '{}'; was it written by another program or version?",
           path, note("format"), kFormat);
    }
  }
  std::string note(const std::string& key) const {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  }
  torch::Tensor tensor(const std::string& name) const {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) fail("{}: tensor '{}' is missing", path, name);
    return found->second;
  }

  std::string path;
  Safetensors file;
};

}  // namespace

std::filesystem::path RunFolder::checkpoint(int64_t iteration) const {
  return path / fmt::format("{}{:09}.safetensors", kPrefix, iteration);
}

std::vector<int64_t> RunFolder::checkpoints() const {
  std::vector<int64_t> found;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string stem = entry.path().stem().string();
    if (entry.path().extension() != ".safetensors" || stem.rfind(kPrefix, 0) != 0) continue;
    const int64_t iteration = to_int(std::string_view(stem).substr(kPrefix.size()));
    if (iteration >= 0 && entry.path() == checkpoint(iteration)) found.push_back(iteration);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void save_checkpoint(const RunFolder& folder, int64_t iteration, const std::string& method,
                     const std::vector<NamedTensor>& state, const Units& units, int64_t keep,
                     const std::vector<std::string>& missing) {
  Safetensors file;
  for (const auto& [name, tensor] : state) file.tensors[name] = tensor.detach();
  file.tensors["units.shift"] = units.shift;
  file.tensors["units.scale"] = units.scale;
  file.metadata = {
      {"format", kFormat}, {"method", method}, {"iteration", std::to_string(iteration)}};
  if (!missing.empty()) file.metadata["missing"] = fmt::format("{}", fmt::join(missing, " "));
  write_safetensors(folder.checkpoint(iteration), file);

  auto there = folder.checkpoints();
  for (size_t i = 0; i + static_cast<size_t>(keep) < there.size(); ++i) {
    std::error_code ignored;  // an old checkpoint that stays costs only space
    std::filesystem::remove(folder.checkpoint(there[i]), ignored);
  }
}

CheckpointFacts read_newest_facts(const RunFolder& folder) {
  const auto there = folder.checkpoints();
  if (there.empty()) {
    fail("{}: no checkpoint yet; train it first, or wait for the first one", folder.path.string());
  }
  const Checkpoint newest(folder.checkpoint(there.back()));
  const Units units{newest.tensor("units.shift"), newest.tensor("units.scale")};
  if (units.shift.dim() == 0 || units.shift.numel() == 0 ||
      units.shift.sizes() != units.scale.sizes()) {
    fail("{}: its units have shapes [{}] and [{}], expected one number a column", newest.path,
         fmt::join(units.shift.sizes(), ", "), fmt::join(units.scale.sizes(), ", "));
  }
  CheckpointFacts facts{units, {}};
  std::istringstream names(newest.note("missing"));
  for (std::string name; names >> name;) facts.missing.push_back(name);
  return facts;
}

std::optional<int64_t> load_checkpoint(const RunFolder& folder, const std::string& method,
                                       const std::vector<NamedTensor>& state, Units& units) {
  const auto there = folder.checkpoints();
  if (there.empty()) return std::nullopt;
  const Checkpoint newest(folder.checkpoint(there.back()));
  if (newest.note("method") != method) {
    fail("{}: a checkpoint of method '{}', the run's settings say '{}'", newest.path,
         newest.note("method"), method);
  }
  if (to_int(newest.note("iteration")) != there.back()) {
    fail("{}: it says iteration '{}', its name another one", newest.path, newest.note("iteration"));
  }
  auto targets = state;
  targets.push_back({"units.shift", units.shift});
  targets.push_back({"units.scale", units.scale});
  // All is checked before anything is changed.
  for (const auto& [name, target] : targets) {
    const auto found = newest.tensor(name);
    if (found.sizes() != target.sizes()) {
      fail("{}: tensor '{}' has shape [{}], the model of config.toml wants [{}]", newest.path, name,
           fmt::join(found.sizes(), ", "), fmt::join(target.sizes(), ", "));
    }
  }
  const torch::NoGradGuard no_grad;
  for (auto& [name, target] : targets) target.copy_(newest.tensor(name));
  return there.back();
}

}  // namespace ddaebm
