#include "ddaebm/train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>

#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

using Json = nlohmann::ordered_json;

// Version 1 had no checksum.
constexpr std::string_view kFormat = "ddaebm checkpoint ";
constexpr int64_t kVersion = 2;
constexpr std::string_view kPrefix = "checkpoint-";

int64_t to_int(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

// Sound, but not for this program.
class LaterFormat : public Error {
 public:
  using Error::Error;
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

std::optional<RunFolder::Best> RunFolder::best() const {
  if (!std::filesystem::exists(path / "best.json")) return {};
  const auto json = Json::parse(read_file(path / "best.json"), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  try {
    return Best{json.at("iteration"), json.at("metric"), json.at("value")};
  } catch (const Json::exception&) {
    return {};  // written by hand; the next evaluation is the best
  }
}

void RunFolder::set_best(const Best& best) const {
  const Json json = {{"iteration", best.iteration}, {"metric", best.metric}, {"value", best.value}};
  write_file(path / "best.json", json.dump() + "\n");
}

void save_checkpoint(const RunFolder& folder, const CheckpointFacts& facts,
                     const std::vector<NamedTensor>& state, const Units& units, int64_t keep) {
  Safetensors file;
  for (const auto& [name, tensor] : state) file.tensors[name] = tensor.detach();
  file.tensors["units.shift"] = units.shift;
  file.tensors["units.scale"] = units.scale;
  file.metadata = {{"format", fmt::format("{}{}", kFormat, kVersion)},
                   {"method", facts.method},
                   {"iteration", std::to_string(facts.iteration)},
                   {"rate", fmt::format("{}", facts.rate)},
                   {"rollbacks", std::to_string(facts.rollbacks)}};
  if (facts.rollbacks > 0) file.metadata["rolled_back"] = std::to_string(facts.rolled_back);
  if (!facts.data.empty()) file.metadata["data"] = facts.data;
  if (!facts.missing.empty()) {
    file.metadata["missing"] = fmt::format("{}", fmt::join(facts.missing, " "));
  }
  write_safetensors(folder.checkpoint(facts.iteration), file, /*with_checksum=*/true);

  const auto there = folder.checkpoints();
  const auto best = folder.best();
  for (size_t i = 0; i + static_cast<size_t>(keep) < there.size(); ++i) {
    if (best && best->iteration == there[i]) continue;
    std::error_code ignored;  // an old checkpoint that stays costs only space
    std::filesystem::remove(folder.checkpoint(there[i]), ignored);
  }
}

Checkpoint::Checkpoint(const std::filesystem::path& path)
    : path_(path.string()), file_(read_safetensors(path)) {
  const auto note = [&](const std::string& key) {
    const auto found = file_.metadata.find(key);
    return found == file_.metadata.end() ? std::string() : found->second;
  };
  const std::string format = note("format");
  const int64_t version =
      format.starts_with(kFormat) ? to_int(std::string_view(format).substr(kFormat.size())) : -1;
  if (version < 1) {
    fail("{}: its format is '{}', expected '{}{}'; was it written by another program?", path_,
         format, kFormat, kVersion);
  }
  if (version > kVersion) {
    throw LaterFormat(fmt::format(
        "{}: a checkpoint of format {}, this program knows up to {}; use the ddaebm that wrote it, "
        "or a later one",
        path_, version, kVersion));
  }
  if (version > 1 && !file_.tensors.contains(kChecksum)) fail("{}: has no checksum", path_);
  facts_.method = note("method");
  facts_.iteration = to_int(note("iteration"));
  if (facts_.iteration < 0) fail("{}: its iteration is '{}'", path_, note("iteration"));
  std::istringstream names(note("missing"));
  for (std::string name; names >> name;) facts_.missing.push_back(name);
  facts_.data = note("data");
  if (version > 1) {
    const std::string rate = note("rate");
    facts_.rate = std::strtod(rate.c_str(), nullptr);
    facts_.rollbacks = to_int(note("rollbacks"));
    facts_.rolled_back = to_int(note("rolled_back"));
  }
}

std::optional<Checkpoint> Checkpoint::newest(const RunFolder& folder, const Damaged& damaged) {
  const auto there = folder.checkpoints();
  std::vector<std::pair<std::filesystem::path, std::string>> broken;
  for (auto iteration = there.rbegin(); iteration != there.rend(); ++iteration) {
    const auto path = folder.checkpoint(*iteration);
    try {
      Checkpoint found(path);
      if (found.facts().iteration != *iteration) {
        fail("{}: it says iteration '{}', its name another one", path.string(),
             found.facts().iteration);
      }
      for (const auto& [file, why] : broken) damaged(file, why);
      return found;
    } catch (const LaterFormat&) {
      throw;
    } catch (const Error& error) {
      broken.emplace_back(path, error.what());
    }
  }
  if (!broken.empty()) fail("{}; no other checkpoint is whole", broken.front().second);
  return {};
}

torch::Tensor Checkpoint::tensor(const std::string& name) const {
  const auto found = file_.tensors.find(name);
  if (found == file_.tensors.end()) fail("{}: tensor '{}' is missing", path_, name);
  return found->second;
}

Units Checkpoint::units() const {
  const Units units{tensor("units.shift"), tensor("units.scale")};
  if (units.shift.dim() == 0 || units.shift.numel() == 0 ||
      units.shift.sizes() != units.scale.sizes()) {
    fail("{}: its units have shapes [{}] and [{}], expected one number a column", path_,
         fmt::join(units.shift.sizes(), ", "), fmt::join(units.scale.sizes(), ", "));
  }
  return units;
}

void Checkpoint::copy_to(const std::string& method, const std::vector<NamedTensor>& state,
                         Units& units) const {
  if (facts_.method != method) {
    fail("{}: a checkpoint of method '{}', the run's settings say '{}'", path_, facts_.method,
         method);
  }
  auto targets = state;
  targets.push_back({"units.shift", units.shift});
  targets.push_back({"units.scale", units.scale});
  for (const auto& [name, target] : targets) {
    const auto found = tensor(name);
    if (found.sizes() != target.sizes()) {
      fail("{}: tensor '{}' has shape [{}], the model of config.toml wants [{}]", path_, name,
           fmt::join(found.sizes(), ", "), fmt::join(target.sizes(), ", "));
    }
  }
  const torch::NoGradGuard no_grad;
  for (auto& [name, target] : targets) target.copy_(tensor(name));
}

CheckpointWriter::~CheckpointWriter() {
  if (under_way_.valid()) under_way_.wait();
}

void CheckpointWriter::wait() {
  if (under_way_.valid()) under_way_.get();
}

void CheckpointWriter::save(const RunFolder& folder, const CheckpointFacts& facts,
                            const std::vector<NamedTensor>& state, const Units& units,
                            int64_t keep) {
  wait();
  std::vector<NamedTensor> copies;
  for (const auto& [name, tensor] : state) {
    copies.push_back({name, tensor.detach().clone(at::MemoryFormat::Contiguous)});
  }
  lane_.follow();
  under_way_ = std::async(std::launch::async, [=, this, kept = std::move(copies)]() mutable {
    // In their own queue: the training's goes on meanwhile.
    lane_.run([&] {
      for (auto& copy : kept) copy.tensor = copy.tensor.to(torch::kCPU);
    });
    save_checkpoint(folder, facts, kept, units, keep);
  });
}

}  // namespace ddaebm
