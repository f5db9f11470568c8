#include "ddaebm/ops/check.h"

#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/nets/precision.h"
#include "ddaebm/train/model.h"

namespace ddaebm::app {

void add_check(CLI::App& app) {
  auto device = std::make_shared<std::string>("cpu");
  auto* command =
      app.add_subcommand("check",
                         "Every fast operator against its plain twin, every precision against "
                         "float64, on this device");
  command->add_option("--device", *device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer("Example:\n  ddaebm check --device cuda");
  command->callback([device] {
    bool good = true;
    const auto on = parse_device(*device);
    for (const auto& result : ops::check_all(on)) {
      good = good && result.passed();
      fmt::print("{:<8} {:<44} error {:.1e}, allowed {:.0e}\n", result.passed() ? "ok" : "WRONG",
                 result.name, result.error, result.allowed);
    }
    fmt::print(
        "\nrelative error against float64 of an image energy: E, dE/dx, and what the penalty "
        "learns from\n");
    for (const auto& error : precision_errors(on)) {
      fmt::print("{:<8} {:.1e}  {:.1e}  {:.1e}\n", error.precision, error.energy, error.gradient,
                 error.second);
    }
    if (!good) fail("an operator differs from its plain twin on {}; please report this", *device);
  });
}

}  // namespace ddaebm::app
