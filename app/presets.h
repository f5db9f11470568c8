#pragma once

#include <string>
#include <vector>

#include "ddaebm/train/settings.h"

namespace ddaebm::app {

// Names of the presets that came with the program.
std::vector<std::string> preset_names();

// Settings of a preset's name, a .toml file or a run folder, with `--set` changes in order.
RunSettings read_settings(const std::string& what, const std::vector<std::string>& changes);

}  // namespace ddaebm::app
