#include "ddaebm/io/authors_checkpoint.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"

namespace ddaebm {
namespace {

// The networks as content.pth calls them.
constexpr const char* kGenerator = "netG_dict";
constexpr const char* kCritic = "netD_dict";
constexpr const char* kEncoder = "netE_dict";

std::string first_keys(const PickleValue::Dict& dict) {
  constexpr size_t kShown = 5;
  std::vector<std::string> keys;
  for (size_t i = 0; i < std::min(dict.size(), kShown); ++i) {
    keys.push_back(excerpt(dict[i].first.text().value_or("?")));
  }
  return fmt::format("{}{}", fmt::join(keys, ", "), dict.size() > kShown ? ", ..." : "");
}

bool is_state_dict(const PickleValue& value) {
  const auto* dict = value.dict();
  return dict != nullptr && !dict->empty() &&
         std::all_of(dict->begin(), dict->end(),
                     [](const auto& entry) { return entry.first.text() && entry.second.tensor(); });
}

// DistributedDataParallel puts its prefix before every name.
NamedTensors named_tensors(const PickleValue& state_dict) {
  constexpr std::string_view kPrefix = "module.";
  const auto& dict = *state_dict.dict();
  const bool prefixed = std::all_of(dict.begin(), dict.end(), [&](const auto& entry) {
    return entry.first.text()->starts_with(kPrefix);
  });
  NamedTensors tensors;
  for (const auto& [key, value] : dict) {
    tensors.emplace_back(key.text()->substr(prefixed ? kPrefix.size() : 0), *value.tensor());
  }
  return tensors;
}

// Nothing where the names are of no network that we know.
std::optional<std::string> kind_of(const NamedTensors& tensors) {
  const auto has = [&](std::string_view part) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& entry) { return entry.first.starts_with(part); });
  };
  if (has("z_transform.")) return "generator";
  for (const char* head : {"conv51.", "conv61.", "end_linear_mean.", "fc_mu."}) {
    if (has(head)) return "encoder";
  }
  if (has("end_linear.")) return "discriminator";
  if (has("all_modules.")) return "energy";
  // The toy networks: only the energy has no batch norm.
  if (has("net.layers_bn.")) return "generator";
  if (has("net.layers.")) return "energy";
  return std::nullopt;
}

// Batch norm's counters stand in a state dict and are no parameters.
bool is_parameter(const std::string& name) {
  return !name.ends_with("running_mean") && !name.ends_with("running_var") &&
         !name.ends_with("num_batches_tracked");
}

// Where DDGAN's EMA was around the optimiser, its state has an 'ema' for each parameter that was
// ever trained. Parameters are numbered, in the order of `networks` and of their state dicts.
void take_averages(const PickleValue& content, const char* optimizer_name,
                   const std::vector<NamedTensors*>& networks, std::vector<std::string>& notes) {
  const PickleValue* optimizer = content.find(optimizer_name);
  const PickleValue* state = optimizer ? optimizer->find("state") : nullptr;
  const PickleValue* groups = optimizer ? optimizer->find("param_groups") : nullptr;
  if (state == nullptr || state->dict() == nullptr || groups == nullptr ||
      groups->list() == nullptr) {
    return;
  }
  std::unordered_map<int64_t, torch::Tensor> averages;
  for (const auto& [key, values] : *state->dict()) {
    const PickleValue* average = values.find("ema");
    if (key.integer() && average && average->tensor()) {
      averages[*key.integer()] = *average->tensor();
    }
  }
  if (averages.empty()) return;

  std::vector<int64_t> numbers;
  for (const PickleValue& group : *groups->list()) {
    const PickleValue* params = group.find("params");
    if (params == nullptr || params->list() == nullptr) continue;
    for (const PickleValue& param : *params->list())
      numbers.push_back(param.integer().value_or(-1));
  }
  std::vector<std::pair<std::string, torch::Tensor>*> parameters;
  for (NamedTensors* network : networks) {
    for (auto& entry : *network) {
      if (is_parameter(entry.first)) parameters.push_back(&entry);
    }
  }
  std::vector<std::pair<torch::Tensor*, torch::Tensor>> replaced;
  bool fits = numbers.size() == parameters.size();
  for (size_t i = 0; fits && i < numbers.size(); ++i) {
    const auto average = averages.find(numbers[i]);
    if (average == averages.end()) continue;
    torch::Tensor& current = parameters[i]->second;
    fits = average->second.sizes() == current.sizes() &&
           average->second.scalar_type() == current.scalar_type();
    replaced.emplace_back(&current, average->second);
  }
  if (!fits) {
    notes.push_back(fmt::format(
        "{} keeps averaged weights that do not fit the networks ({} parameters, expected {}); the "
        "current weights are used, whose samples are worse",
        optimizer_name, numbers.size(), parameters.size()));
    return;
  }
  for (auto& [current, average] : replaced) *current = average;
  notes.push_back(fmt::format("averaged weights from {} are used, of {} of {} parameters",
                              optimizer_name, replaced.size(), parameters.size()));
}

std::map<std::string, PickleValue> settings_of(const PickleValue& args) {
  // argparse.Namespace keeps its attributes as its state.
  const PickleValue& attributes = args.object() != nullptr ? args.object()->state : args;
  std::map<std::string, PickleValue> settings;
  if (attributes.dict() == nullptr) return settings;
  for (const auto& [key, value] : *attributes.dict()) {
    if (key.text()) settings.emplace(*key.text(), value);
  }
  return settings;
}

}  // namespace

AuthorsCheckpoint find_authors_networks(const std::string& where, const PickleValue& content) {
  if (content.dict() == nullptr) {
    const auto* object = content.object();
    fail("{}: found {}, expected a dict; save a network's state_dict()", where,
         object ? "an instance of " + object->name : "no dict");
  }
  AuthorsCheckpoint checkpoint;
  if (is_state_dict(content)) {
    NamedTensors tensors = named_tensors(content);
    const auto kind = kind_of(tensors);
    if (!kind) {
      fail(
          "{}: a state dict with {}; expected that of a generator, energy or encoder of the "
          "authors' or DDGAN's code",
          where, first_keys(*content.dict()));
    }
    checkpoint.networks.emplace(*kind, std::move(tensors));
    return checkpoint;
  }

  std::map<std::string, NamedTensors> found;  // by content.pth's names
  for (const char* name : {kGenerator, kCritic, kEncoder}) {
    const PickleValue* state_dict = content.find(name);
    if (state_dict == nullptr) continue;
    if (!is_state_dict(*state_dict)) fail("{}: {} is not a dict of tensors", where, name);
    found.emplace(name, named_tensors(*state_dict));
  }
  if (found.empty()) {
    fail("{}: a dict with {}; expected netG_dict, netD_dict or netE_dict, or a state dict", where,
         first_keys(*content.dict()));
  }
  std::vector<NamedTensors*> of_generator;  // one optimiser trains generator and encoder
  for (const char* name : {kGenerator, kEncoder}) {
    if (found.contains(name)) of_generator.push_back(&found.at(name));
  }
  take_averages(content, "optimizerG", of_generator, checkpoint.notes);
  if (found.contains(kCritic)) {
    take_averages(content, "optimizerD", {&found.at(kCritic)}, checkpoint.notes);
  }
  for (auto& [name, tensors] : found) {
    const auto kind = kind_of(tensors);
    const bool expected = (name == kGenerator && kind == "generator") ||
                          (name == kCritic && (kind == "energy" || kind == "discriminator")) ||
                          (name == kEncoder && kind == "encoder");
    if (!expected) {
      fail("{}: {} has {}; those are not the authors' or DDGAN's names of its tensors", where, name,
           first_keys(*content.find(name)->dict()));
    }
    checkpoint.networks.emplace(*kind, std::move(tensors));
  }
  if (const PickleValue* args = content.find("args")) checkpoint.settings = settings_of(*args);
  if (const PickleValue* epoch = content.find("epoch")) checkpoint.epoch = epoch->integer();
  if (const PickleValue* step = content.find("global_step")) {
    checkpoint.global_step = step->integer();
  }
  return checkpoint;
}

}  // namespace ddaebm
