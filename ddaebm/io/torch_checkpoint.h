#pragma once

#include <filesystem>

#include "ddaebm/io/pickle.h"

namespace ddaebm {

// What torch.save wrote: the zip archives of PyTorch 1.6 and later, and the files before. Tensors
// come back on the CPU in their stored type; those that share a storage in the file share it here.
// The file is not trusted: nothing in it is called, and every size and offset is checked before it
// is used.
Pickle read_torch_checkpoint(const std::filesystem::path& path);

}  // namespace ddaebm
