#include "ddaebm/nets/authors_names.h"

#include <map>
#include <regex>
#include <utility>
#include <vector>

namespace ddaebm {
namespace {

// A pattern for a whole name and what to write instead, with $1, $2, ...
using Rules = std::vector<std::pair<std::regex, std::string>>;

std::optional<std::string> first_match(const std::string& name, const Rules& rules) {
  for (const auto& [pattern, ours] : rules) {
    if (std::regex_match(name, pattern)) return std::regex_replace(name, pattern, ours);
  }
  return std::nullopt;
}

std::regex pattern(const char* text) { return std::regex(text); }

// Within one part of a U-Net.
const Rules& part_rules() {
  static const Rules rules = {
      {pattern(R"(GroupNorm_([01])\.style\.(weight|bias))"), "norm$1.style.$2"},
      {pattern(R"(Conv_([01])\.(weight|bias))"), "conv$1.$2"},
      {pattern(R"(Conv_2\.(weight|bias))"), "skip.$1"},
      {pattern(R"(Dense_0\.(weight|bias))"), "time.$1"},
      {pattern(R"(Conv2d_0\.(weight|bias))"), "conv.$1"},
      {pattern(R"(NIN_0\.W)"), "query_weight"},
      {pattern(R"(NIN_0\.b)"), "query_bias"},
      {pattern(R"(NIN_1\.W)"), "key_weight"},
      {pattern(R"(NIN_1\.b)"), "key_bias"},
      {pattern(R"(NIN_2\.W)"), "value_weight"},
      {pattern(R"(NIN_2\.b)"), "value_bias"},
      {pattern(R"(NIN_3\.W)"), "out_weight"},
      {pattern(R"(NIN_3\.b)"), "out_bias"},
      {pattern(R"(GroupNorm_([01])\.weight)"), "norm$1.scale"},
      {pattern(R"(GroupNorm_([01])\.bias)"), "norm$1.shift"},
      {pattern(R"((weight|bias))"), "$1"}};
  return rules;
}

const Rules& encoder_rules() {
  static const Rules rules = {{pattern(R"(t_embed\.main\.0\.(weight|bias))"), "time.linear0.$1"},
                              {pattern(R"(t_embed\.main\.2\.(weight|bias))"), "time.linear1.$1"},
                              {pattern(R"(start_conv\.conv\.(weight|bias))"), "in.$1"},
                              {pattern(R"(final_conv\.conv\.(weight|bias))"), "out.$1"},
                              {pattern(R"(end_linear_mean\.(weight|bias))"), "mean.$1"},
                              {pattern(R"(end_linear_logvar\.(weight|bias))"), "log_variance.$1"},
                              {pattern(R"(conv\d1\.(weight|bias))"), "mean.$1"},
                              {pattern(R"(conv\d2\.(weight|bias))"), "log_variance.$1"}};
  return rules;
}

// Layers that the authors count from one.
std::optional<std::string> encoder_layer(const std::string& name) {
  std::smatch part;
  const auto number = [&] { return std::to_string(std::stoll(part.str(1)) - 1); };
  static const std::regex conv(R"(conv(\d)\.weight)");
  if (std::regex_match(name, part, conv)) return "conv" + number() + ".weight";
  static const std::regex time(R"(dense_t(\d)\.(weight|bias))");
  if (std::regex_match(name, part, time)) return "time" + number() + "." + part.str(2);
  static const std::regex block(R"(conv(\d)\.(.+))");
  if (!std::regex_match(name, part, block)) return std::nullopt;
  static const Rules within = {{pattern(R"(conv1\.0\.conv\.(weight|bias))"), "conv0.$1"},
                               {pattern(R"(conv2\.0\.conv\.(weight|bias))"), "conv1.$1"},
                               {pattern(R"(dense_t1\.(weight|bias))"), "time.$1"},
                               {pattern(R"(skip\.0\.conv\.weight)"), "skip.weight"}};
  const auto rest = first_match(part.str(2), within);
  return rest ? std::optional("block" + number() + "." + *rest) : std::nullopt;
}

std::optional<std::string> unet_part(const std::string& name, const torch::nn::Module& unet) {
  std::smatch part;
  static const std::regex numbered(R"(all_modules\.(\d+)\.(.+))");
  if (!std::regex_match(name, part, numbered)) return std::nullopt;
  const auto children = unet.named_children();
  const size_t index = std::stoul(part.str(1));
  if (index >= children.size()) return std::nullopt;
  const std::string& child = children[index].key();
  auto rest = first_match(part.str(2), part_rules());
  if (!rest) return std::nullopt;
  const auto ends_with = [&](const std::string& end) {
    return child.size() >= end.size() &&
           child.compare(child.size() - end.size(), end.size(), end) == 0;
  };
  if (child == "out_norm") rest = *rest == "weight" ? "scale" : "shift";
  // An attention block has one norm, a pyramid step one convolution.
  if (rest->rfind("norm0.", 0) == 0 && child.find("attention") != std::string::npos) {
    rest = "norm." + rest->substr(6);
  }
  if (rest->rfind("conv0.", 0) == 0 && ends_with("pyramid")) rest = "conv." + rest->substr(6);
  return child + "." + *rest;
}

}  // namespace

std::optional<std::string> our_image_name(const std::string& authors_name,
                                          const torch::nn::Module& networks) {
  const auto dot = authors_name.find('.');
  if (dot == std::string::npos) return std::nullopt;
  const std::string network = authors_name.substr(0, dot);
  const std::string name = authors_name.substr(dot + 1);
  std::optional<std::string> ours;
  if (network == "encoder") {
    ours = first_match(name, encoder_rules());
    if (!ours) ours = encoder_layer(name);
  } else {
    std::smatch part;
    static const std::regex latent(R"(z_transform\.(\d+)\.(weight|bias))");
    if (std::regex_match(name, part, latent)) {
      ours = "latent" + std::to_string(std::stoll(part.str(1)) / 2) + "." + part.str(2);
    } else {
      // The dictionaries are made by these calls: what is found in them lives no longer.
      const auto all = networks.named_children();
      const auto* child = all.find(network);
      if (child == nullptr) return std::nullopt;
      const auto parts = (*child)->named_children();
      const auto* unet = parts.find("net");
      if (unet != nullptr) ours = unet_part(name, **unet);
      if (ours) ours = "net." + *ours;
    }
  }
  return ours ? std::optional(network + "." + *ours) : std::nullopt;
}

std::optional<std::string> our_name(const std::string& authors_name, int64_t trunk_layers,
                                    int64_t branch_layers) {
  std::smatch part;
  static const std::regex head(R"((\w+)\.fc_(mu|var)\.(weight|bias))");
  if (std::regex_match(authors_name, part, head)) {
    return part.str(1) + (part.str(2) == "mu" ? ".mean." : ".log_variance.") + part.str(3) + "0";
  }
  static const std::regex layer(
      R"((\w+)\.(net|x_encoder|t_encoder)\.(layers|layers_bn|activation_fn)\.(\d+)\.(\w+))");
  if (!std::regex_match(authors_name, part, layer)) return std::nullopt;
  static const std::map<std::string, std::string> stacks = {
      {"net", "trunk"}, {"x_encoder", "x_branch"}, {"t_encoder", "t_branch"}};
  static const std::map<std::string, std::string> tensors = {
      {"layers.weight", "weight"},
      {"layers.bias", "bias"},
      {"layers_bn.weight", "norm_scale"},
      {"layers_bn.bias", "norm_shift"},
      {"layers_bn.running_mean", "norm_mean"},
      {"layers_bn.running_var", "norm_variance"},
      {"activation_fn.weight", "slope"}};
  const auto tensor = tensors.find(part.str(3) + "." + part.str(5));
  if (tensor == tensors.end()) return std::nullopt;
  const int64_t layers = part.str(2) == "net" ? trunk_layers : branch_layers;
  if (part.str(3) != "layers" && std::stoll(part.str(4)) + 1 >= layers) return std::nullopt;
  return part.str(1) + ".net." + stacks.at(part.str(2)) + "." + tensor->second + part.str(4);
}

}  // namespace ddaebm
