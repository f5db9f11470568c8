#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string_view>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/ops/tuning.h"

namespace {

// What went wrong, on one line of standard error.
int complain(std::string message, int exit_code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "ddaebm: {}\n", message);
  return exit_code;
}

int run(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  const bool trains = command == "train" || command == "compare" || command == "reproduce";
  ddaebm::ops::tune_process(trains ? argv : nullptr);
  CLI::App app(
      "Trains, samples and scores diffusion adversarial energy-based models.\n"
      "Example: ddaebm train 25gaussians && ddaebm sample runs/25gaussians -n 1000 -o points.csv");
  app.name("ddaebm");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(DDAEBM_VERSION));
  ddaebm::app::add_train(app);
  ddaebm::app::add_sample(app);
  ddaebm::app::add_score(app);
  ddaebm::app::add_eval(app);
  ddaebm::app::add_compare(app);
  ddaebm::app::add_reproduce(app);
  ddaebm::app::add_ood(app);
  ddaebm::app::add_fid(app);
  ddaebm::app::add_serve(app);
  ddaebm::app::add_report(app);
  ddaebm::app::add_data(app);
  ddaebm::app::add_import(app);
  ddaebm::app::add_export(app);
  ddaebm::app::add_settings(app);
  ddaebm::app::add_check(app);
  ddaebm::app::add_completion(app);
  ddaebm::app::add_manual(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
    const bool known = std::any_of(commands.begin(), commands.end(),
                                   [&](const CLI::App* one) { return one->get_name() == command; });
    if (!known && !command.empty() && !command.starts_with('-')) {
      return complain(fmt::format("'{}' is no command; --help lists them", command), 2);
    }
    return complain(fmt::format("{}; --help shows what is expected", e.what()), 2);
  } catch (const ddaebm::Error& e) {
    return complain(e.what(), 2);
  } catch (const std::filesystem::filesystem_error& e) {
    return complain(e.what(), 2);
  } catch (const std::exception& e) {
    return complain(fmt::format("a bug, or out of memory: {}", e.what()), 1);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {
    std::fputs("ddaebm: out of memory, or standard error is gone\n", stderr);
    return 1;
  }
}
