#include "ddaebm/metrics/inception_import.h"

#include <utility>
#include <vector>

#include "ddaebm/error.h"
#include "ddaebm/metrics/inception.h"

namespace ddaebm {
namespace {

using Tensors = std::map<std::string, torch::Tensor>;
using Names = std::vector<std::pair<std::string, std::string>>;

constexpr double kEpsilon = 1e-3;  // of every batch norm in the network

// Each convolution's name in torchvision, and ours.
Names convolution_names() {
  Names names = {{"Conv2d_1a_3x3", "conv"},
                 {"Conv2d_2a_3x3", "conv_1"},
                 {"Conv2d_2b_3x3", "conv_2"},
                 {"Conv2d_3b_1x1", "conv_3"},
                 {"Conv2d_4a_3x3", "conv_4"}};
  const auto add = [&](const std::vector<std::string>& blocks, int64_t first, const Names& inner) {
    for (const auto& block : blocks) {
      const std::string ours = first == 0 ? "mixed_" : fmt::format("mixed_{}_", first);
      for (const auto& [theirs, name] : inner) {
        names.emplace_back(fmt::format("Mixed_{}.{}", block, theirs), ours + name);
      }
      ++first;
    }
  };
  add({"5b", "5c", "5d"}, 0,
      {{"branch1x1", "conv"},
       {"branch5x5_1", "tower_conv"},
       {"branch5x5_2", "tower_conv_1"},
       {"branch3x3dbl_1", "tower_1_conv"},
       {"branch3x3dbl_2", "tower_1_conv_1"},
       {"branch3x3dbl_3", "tower_1_conv_2"},
       {"branch_pool", "tower_2_conv"}});
  add({"6a"}, 3,
      {{"branch3x3", "conv"},
       {"branch3x3dbl_1", "tower_conv"},
       {"branch3x3dbl_2", "tower_conv_1"},
       {"branch3x3dbl_3", "tower_conv_2"}});
  add({"6b", "6c", "6d", "6e"}, 4,
      {{"branch1x1", "conv"},
       {"branch7x7_1", "tower_conv"},
       {"branch7x7_2", "tower_conv_1"},
       {"branch7x7_3", "tower_conv_2"},
       {"branch7x7dbl_1", "tower_1_conv"},
       {"branch7x7dbl_2", "tower_1_conv_1"},
       {"branch7x7dbl_3", "tower_1_conv_2"},
       {"branch7x7dbl_4", "tower_1_conv_3"},
       {"branch7x7dbl_5", "tower_1_conv_4"},
       {"branch_pool", "tower_2_conv"}});
  add({"7a"}, 8,
      {{"branch3x3_1", "tower_conv"},
       {"branch3x3_2", "tower_conv_1"},
       {"branch7x7x3_1", "tower_1_conv"},
       {"branch7x7x3_2", "tower_1_conv_1"},
       {"branch7x7x3_3", "tower_1_conv_2"},
       {"branch7x7x3_4", "tower_1_conv_3"}});
  add({"7b", "7c"}, 9,
      {{"branch1x1", "conv"},
       {"branch3x3_1", "tower_conv"},
       {"branch3x3_2a", "tower_mixed_conv"},
       {"branch3x3_2b", "tower_mixed_conv_1"},
       {"branch3x3dbl_1", "tower_1_conv"},
       {"branch3x3dbl_2", "tower_1_conv_1"},
       {"branch3x3dbl_3a", "tower_1_mixed_conv"},
       {"branch3x3dbl_3b", "tower_1_mixed_conv_1"},
       {"branch_pool", "tower_2_conv"}});
  return names;
}

}  // namespace

std::optional<Tensors> inception_state(const PickleValue& content) {
  if (content.find("Conv2d_1a_3x3.conv.weight") == nullptr) return std::nullopt;
  Tensors tensors;
  for (const auto& [key, value] : *content.dict()) {
    if (key.text() && value.tensor() != nullptr) {
      tensors.emplace(*key.text(), *value.tensor());
    }
  }
  return tensors;
}

Tensors import_inception(const std::string& where, Tensors theirs) {
  std::erase_if(theirs, [](const auto& entry) {
    return entry.first.ends_with(".num_batches_tracked");  // batch norm's counter
  });
  const auto take = [&](const std::string& name) {
    const auto found = theirs.find(name);
    if (found == theirs.end()) fail("{}: there is no tensor '{}'", where, name);
    torch::Tensor tensor = found->second;
    if (!tensor.is_floating_point()) fail("{}: tensor '{}' holds no real numbers", where, name);
    theirs.erase(found);
    return tensor;
  };
  const auto classes = theirs.find("fc.weight");
  if (classes != theirs.end() && classes->second.dim() == 2 && classes->second.size(0) == 1000) {
    fail(
        "{}: torchvision's own Inception network, of 1000 classes, whose distances are no FID; "
        "expected pytorch-fid's pt_inception-2015-12-05-6726825d.pth, of 1008",
        where);
  }
  Tensors ours;
  for (const auto& [name, our_name] : convolution_names()) {
    const auto weight = take(name + ".conv.weight");
    std::vector<torch::Tensor> norm;
    for (const char* part : {"weight", "bias", "running_mean", "running_var"}) {
      norm.push_back(take(fmt::format("{}.bn.{}", name, part)).to(torch::kDouble));
      if (weight.dim() != 4 || norm.back().sizes() != weight.sizes().slice(0, 1)) {
        fail("{}: '{}' has a convolution of [{}] and a batch norm of [{}]", where, name,
             fmt::join(weight.sizes(), ", "), fmt::join(norm.back().sizes(), ", "));
      }
    }
    // (conv(x) - mean) / sqrt(variance + epsilon) * weight + bias
    const auto factor = norm[0] / (norm[3] + kEpsilon).sqrt();
    ours[our_name + ".weight"] =
        (weight.to(torch::kDouble) * factor.view({-1, 1, 1, 1})).to(weight.scalar_type());
    ours[our_name + ".bias"] = (norm[1] - norm[2] * factor).to(weight.scalar_type());
  }
  for (const char* part : {"weight", "bias"}) {
    ours[fmt::format("logits.{}", part)] = take(fmt::format("fc.{}", part));
  }
  if (!theirs.empty()) {
    fail("{}: {} tensors that the network of 2015-12-05 does not have, first '{}'", where,
         theirs.size(), theirs.begin()->first);
  }
  const Inception check(where, ours, torch::kFloat);
  return ours;
}

}  // namespace ddaebm
