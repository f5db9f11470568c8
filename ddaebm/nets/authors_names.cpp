#include "ddaebm/nets/authors_names.h"

#include <map>
#include <regex>

namespace ddaebm {

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
