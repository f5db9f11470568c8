#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ddaebm/io/authors_checkpoint.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {

// What a checkpoint's own settings (an argparse.Namespace) say in ours, as `--set` takes them:
// "image_net.channels=128". Without them, what the tensors' shapes tell.
std::vector<std::string> imported_settings(const AuthorsCheckpoint& checkpoint);

// Writes a run folder with the checkpoint's networks as averaged weights: it samples where there is
// a generator, and scores where there is an energy. A tensor that is missing, not known, or of
// another shape than the settings' network has is an Error. Returns what the user should know.
std::vector<std::string> import_checkpoint(const AuthorsCheckpoint& checkpoint,
                                           RunSettings& settings, int64_t image_size,
                                           const std::filesystem::path& folder);

}  // namespace ddaebm
