#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "ddaebm/io/pickle.h"

namespace ddaebm {

// A network's tensors under the authors' names, without "module.", in the file's order.
using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// What a checkpoint of the authors' code, or of DDGAN's, holds. Settings and counters are there
// only where the file has them (content.pth does, a bare state dict does not).
struct AuthorsCheckpoint {
  std::map<std::string, NamedTensors> networks;  // "generator", "energy", "encoder", and of DDGAN
                                                 // "discriminator"
  std::map<std::string, PickleValue> settings;   // num_channels_dae, ch_mult, nz, ...
  std::optional<int64_t> epoch;
  std::optional<int64_t> global_step;
  std::vector<std::string> notes;  // what the user should know, a sentence each
};

// From what read_torch_checkpoint gave: content.pth (netG_dict, netD_dict, netE_dict, optimisers)
// or one network's state dict, told by its tensors' names. Averaged weights, which DDGAN's
// optimiser wrapper keeps in its state, take the place of the current ones. `where` starts errors.
AuthorsCheckpoint find_authors_networks(const std::string& where, const PickleValue& content);

}  // namespace ddaebm
