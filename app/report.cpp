#include "ddaebm/io/report.h"

#include <filesystem>
#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/error.h"

namespace ddaebm::app {

void add_report(CLI::App& app) {
  auto run = std::make_shared<std::string>();
  auto* command = app.add_subcommand("report", "Write a run's report.html anew");
  command->add_option("RUN", *run, "Run folder")->required();
  command->footer("Example:\n  ddaebm report runs/25gaussians");
  command->callback([run] {
    if (!std::filesystem::exists(std::filesystem::path(*run) / "config.toml")) {
      fail("{}: not a run folder (it has no config.toml)", *run);
    }
    write_report(*run);
    fmt::print("{}/report.html\n", *run);
  });
}

}  // namespace ddaebm::app
