#pragma once

#include <map>
#include <optional>
#include <string>

#include <torch/types.h>

#include "ddaebm/io/pickle.h"

namespace ddaebm {

// The tensors of a checkpoint that is a state dict under torchvision's names of Inception v3;
// nothing where it is something else.
std::optional<std::map<std::string, torch::Tensor>> inception_state(const PickleValue& content);

// The tensors of Inception's weight file, made of pytorch-fid's published state dict
// (pt_inception-2015-12-05): our names, batch norm folded into the convolutions, computed in
// float64 and kept in the file's type. What is missing, unknown or of the wrong shape is an Error
// that starts with `where`.
std::map<std::string, torch::Tensor> import_inception(const std::string& where,
                                                      std::map<std::string, torch::Tensor> theirs);

}  // namespace ddaebm
