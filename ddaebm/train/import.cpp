#include "ddaebm/train/import.h"

#include <optional>
#include <set>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/nets/authors_names.h"
#include "ddaebm/train/checkpoint.h"

namespace ddaebm {
namespace {

// The authors' setting, ours, and how its value is written.
enum class As { number, list, negated, filter, pyramid };
struct Pair {
  const char* theirs;
  const char* ours;
  As as;
};
constexpr Pair kPairs[] = {
    {"num_channels_dae", "image_net.channels", As::number},
    {"ch_mult", "image_net.multipliers", As::list},
    {"num_res_blocks", "image_net.blocks", As::number},
    {"num_res_blocks_E", "image_net.energy_blocks", As::number},
    {"attn_resolutions", "image_net.attention", As::list},
    {"dropout", "image_net.dropout", As::number},
    {"fir", "image_net.resample", As::filter},
    {"progressive_input", "image_net.pyramid", As::pyramid},
    {"not_use_tanh", "image_net.tanh", As::negated},
    {"nz", "image_net.latent", As::number},
    {"z_emb_dim", "image_net.latent_width", As::number},
    {"n_mlp", "image_net.latent_layers", As::number},
    {"ngf", "image_net.encoder_width", As::number},
    {"t_emb_dim", "image_net.encoder_time", As::number},
    {"num_timesteps", "diffusion.steps", As::number},
    {"beta_min", "diffusion.beta_min", As::number},
    {"beta_max", "diffusion.beta_max", As::number},
};

std::optional<std::string> written(const PickleValue& value, As as) {
  switch (as) {
    case As::number:
      if (const auto integer = value.integer()) return std::to_string(*integer);
      if (const auto number = value.number()) return fmt::format("{}", *number);
      return std::nullopt;
    case As::list: {
      if (value.list() == nullptr) return std::nullopt;
      std::vector<int64_t> numbers;
      for (const auto& item : *value.list()) {
        const auto integer = item.integer();
        if (!integer) return std::nullopt;
        numbers.push_back(*integer);
      }
      return fmt::format("[{}]", fmt::join(numbers, ", "));
    }
    case As::negated:
      if (const auto flag = value.boolean()) return *flag ? "false" : "true";
      return std::nullopt;
    case As::filter:
      if (const auto flag = value.boolean()) return *flag ? "fir" : "box";
      return std::nullopt;
    default:
      if (const auto text = value.text()) return *text == "residual" ? "true" : "false";
      return std::nullopt;
  }
}

const torch::Tensor* find(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

// What shapes alone tell: widths, but not how levels and blocks are arranged.
void add_from_shapes(const AuthorsCheckpoint& checkpoint, std::vector<std::string>& settings) {
  const auto generator = checkpoint.networks.find("generator");
  if (generator != checkpoint.networks.end()) {
    if (const auto* first = find(generator->second, "z_transform.1.weight")) {
      settings.push_back(fmt::format("image_net.latent={}", first->size(1)));
      settings.push_back(fmt::format("image_net.latent_width={}", first->size(0)));
    }
    int64_t layers = 0;
    while (find(generator->second, fmt::format("z_transform.{}.weight", 3 + 2 * layers))) ++layers;
    settings.push_back(fmt::format("image_net.latent_layers={}", layers));
  }
  for (const char* name : {"generator", "energy"}) {
    const auto network = checkpoint.networks.find(name);
    if (network == checkpoint.networks.end()) continue;
    if (const auto* in = find(network->second, "all_modules.2.weight"); in && in->dim() == 4) {
      settings.push_back(fmt::format("image_net.channels={}", in->size(0)));
      break;
    }
  }
}

}  // namespace

std::vector<std::string> imported_settings(const AuthorsCheckpoint& checkpoint) {
  std::vector<std::string> settings;
  if (checkpoint.settings.empty()) {
    add_from_shapes(checkpoint, settings);
  }
  for (const Pair& pair : kPairs) {
    const auto found = checkpoint.settings.find(pair.theirs);
    if (found == checkpoint.settings.end()) continue;
    if (const auto value = written(found->second, pair.as)) {
      settings.push_back(fmt::format("{}={}", pair.ours, *value));
    }
  }
  const auto encoder = checkpoint.networks.find("encoder");
  if (encoder != checkpoint.networks.end() && find(encoder->second, "start_conv.conv.weight")) {
    settings.emplace_back("image_net.encoder=large");
  }
  return settings;
}

std::vector<std::string> import_checkpoint(const AuthorsCheckpoint& checkpoint,
                                           RunSettings& settings, int64_t image_size,
                                           const std::filesystem::path& folder) {
  const RunFolder run{folder};
  if (std::filesystem::exists(run.config())) {
    fail("{} holds a run already; choose another --out", folder.string());
  }
  std::vector<std::string> notes = checkpoint.notes;
  const std::vector<int64_t> event = {3, image_size, image_size};
  const auto method = settings.method_settings->build(event, torch::TensorOptions(torch::kFloat));
  std::vector<NamedTensor> state;
  std::map<std::string, torch::Tensor> ours;
  for (const auto& item : method->module().named_parameters()) {
    ours[item.key()] = item.value().detach();
    state.push_back({"average." + item.key(), item.value().detach()});
  }
  for (const auto& item : method->module().named_buffers()) {
    state.push_back({"average." + item.key(), item.value()});
  }

  const torch::NoGradGuard no_grad;
  std::set<std::string> filled;
  for (const auto& [network, tensors] : checkpoint.networks) {
    if (network != "generator" && network != "energy" && network != "encoder") {
      notes.push_back(fmt::format("the {} has no place in a DDAEBM and was left out", network));
      continue;
    }
    for (const auto& [name, tensor] : tensors) {
      const auto our_name = our_image_name(fmt::format("{}.{}", network, name), method->module());
      const auto target = our_name ? ours.find(*our_name) : ours.end();
      if (target == ours.end()) {
        fail(
            "{} has a tensor '{}' that a network of these settings has not; give the checkpoint's "
            "own with --preset and --set image_net....",
            network, name);
      }
      if (target->second.sizes() != tensor.sizes()) {
        fail(
            "{}: tensor '{}' has shape [{}], a network of these settings wants [{}]; change them "
            "with --preset and --set image_net....",
            network, name, fmt::join(tensor.sizes(), ", "),
            fmt::join(target->second.sizes(), ", "));
      }
      target->second.copy_(tensor);
      filled.insert(*our_name);
    }
    for (const auto& [name, tensor] : ours) {
      if (name.rfind(network + ".", 0) == 0 && filled.count(name) == 0) {
        fail(
            "{}: the file has nothing for '{}'; give its own settings with --preset and --set "
            "image_net....",
            network, name);
      }
    }
  }
  std::vector<std::string> missing;
  for (const char* network : {"generator", "energy", "encoder"}) {
    if (checkpoint.networks.count(network) == 0) missing.emplace_back(network);
  }
  if (missing.size() == 3) fail("no network of a DDAEBM or DDGAN was found in the file");
  if (!missing.empty()) {
    notes.push_back(
        fmt::format("not in the file: {}; what needs it will say so", fmt::join(missing, ", ")));
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("{}: {}", folder.string(), error.message());
  const Units units{torch::zeros(event, torch::kDouble), torch::ones(event, torch::kDouble)};
  CheckpointFacts facts;
  facts.method = settings.method;
  facts.iteration = checkpoint.global_step.value_or(0);
  facts.missing = missing;
  save_checkpoint(run, facts, state, units, 1);
  // Last, since it is what makes the folder a run.
  write_file(run.config(), settings.to_toml());
  return notes;
}

}  // namespace ddaebm
