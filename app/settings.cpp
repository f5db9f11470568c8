#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>

namespace ddaebm::app {

void add_settings(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  auto* command = app.add_subcommand(
      "settings", "Every setting with its meaning, as a .toml file; without a name, the presets");
  command->add_option("SETTINGS", *what, "A preset, a .toml file or a run folder");
  command->footer("Example:\n  ddaebm settings 25gaussians > mine.toml && ddaebm train mine.toml");
  command->callback([what] {
    if (what->empty()) {
      for (const auto& name : preset_names()) {
        fmt::print("{:<18} {}\n", name, preset_meaning(name));
      }
    } else {
      fmt::print("{}", read_settings(*what, {}).to_toml());
    }
  });
}

}  // namespace ddaebm::app
