#pragma once

#include <string>
#include <vector>

#include "ddaebm/train/settings.h"

namespace ddaebm::app {

// Names of the presets that came with the program.
std::vector<std::string> preset_names();

// What a preset is for: the first sentence of its file.
std::string preset_meaning(const std::string& name);

// Settings of a preset's name, a .toml file or a run folder, with `--set` changes in order.
RunSettings read_settings(const std::string& what, const std::vector<std::string>& changes);

}  // namespace ddaebm::app
