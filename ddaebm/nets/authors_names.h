#pragma once

#include <optional>
#include <string>

namespace ddaebm {

// Our name for a tensor of the authors' toy networks, both starting with the network:
// "energy.x_encoder.layers_bn.0.running_mean" -> "energy.net.x_branch.norm_mean0". Nothing for what
// the networks do not use: counters, and the norms and slopes of last layers.
std::optional<std::string> our_name(const std::string& authors_name, int64_t trunk_layers,
                                    int64_t branch_layers);

}  // namespace ddaebm
