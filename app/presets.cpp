#include "app/presets.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm::app {
namespace {

namespace fs = std::filesystem;

// Where asked for, else as installed beside the program, else in the source tree.
fs::path preset_folder() {
  const char* given = std::getenv("DDAEBM_PRESETS");
  if (given != nullptr) return given;
  std::error_code error;
  const auto installed = fs::read_symlink("/proc/self/exe", error).parent_path().parent_path() /
                         "share/ddaebm/presets";
  return fs::is_directory(installed, error) ? installed : fs::path(DDAEBM_PRESETS);
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(preset_folder(), error)) {
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string preset_meaning(const std::string& name) {
  const std::string text = read_file(preset_folder() / (name + ".toml"));
  std::string line = text.substr(0, text.find('\n'));
  line = line.substr(0, line.find(". "));
  const auto start = line.find_first_not_of("# ");
  return line.starts_with('#') && start != std::string::npos ? line.substr(start) : "";
}

RunSettings read_settings(const std::string& what, const std::vector<std::string>& changes) {
  fs::path path = what;
  const auto names = preset_names();
  if (std::find(names.begin(), names.end(), what) != names.end()) {
    path = preset_folder() / (what + ".toml");
  } else if (fs::exists(path / "config.toml")) {
    path /= "config.toml";
  } else if (!fs::is_regular_file(path)) {
    fail("'{}' is neither a preset nor a settings file nor a run folder; presets: {}", what,
         fmt::join(names, ", "));
  }
  auto file = ConfigFile::parse(read_file(path), path.string());
  for (const auto& change : changes) file.set(change);
  return RunSettings(file);
}

}  // namespace ddaebm::app
