#include "ddaebm/ops/check.h"

#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/train/model.h"

namespace ddaebm::app {

void add_check(CLI::App& app) {
  auto device = std::make_shared<std::string>("cpu");
  auto* command =
      app.add_subcommand("check", "Every fast operator against its plain twin on this device");
  command->add_option("--device", *device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer("Example:\n  ddaebm check --device cuda");
  command->callback([device] {
    bool good = true;
    for (const auto& result : ops::check_all(parse_device(*device))) {
      good = good && result.passed();
      fmt::print("{:<8} {:<44} error {:.1e}, allowed {:.0e}\n", result.passed() ? "ok" : "WRONG",
                 result.name, result.error, result.allowed);
    }
    if (!good) fail("an operator differs from its plain twin on {}; please report this", *device);
  });
}

}  // namespace ddaebm::app
