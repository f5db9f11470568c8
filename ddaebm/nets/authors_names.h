#pragma once

#include <optional>
#include <string>

#include <torch/nn/module.h>

namespace ddaebm {

// Our name for a tensor of the authors' toy networks, both starting with the network:
// "energy.x_encoder.layers_bn.0.running_mean" -> "energy.net.x_branch.norm_mean0". Nothing for what
// the networks do not use: counters, and the norms and slopes of last layers.
std::optional<std::string> our_name(const std::string& authors_name, int64_t trunk_layers,
                                    int64_t branch_layers);

// The same for the image networks, of the authors and of DDGAN:
// "generator.all_modules.3.Conv_0.bias"
// -> "generator.net.down0_block0.conv0.bias". `networks` holds ours as children energy, generator
// and encoder; the authors number a U-Net's parts in the order in which ours are registered.
std::optional<std::string> our_image_name(const std::string& authors_name,
                                          const torch::nn::Module& networks);

}  // namespace ddaebm
