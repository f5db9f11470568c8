#include <cstdio>
#include <exception>

#include "app/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "ddaebm/error.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Trains, samples and scores diffusion adversarial energy-based models.\n"
      "Example: ddaebm train 25gaussians && ddaebm sample runs/25gaussians -n 1000 -o points.csv");
  app.name("ddaebm");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(DDAEBM_VERSION));
  app.failure_message(CLI::FailureMessage::simple);
  ddaebm::app::add_train(app);
  ddaebm::app::add_sample(app);
  ddaebm::app::add_score(app);
  ddaebm::app::add_eval(app);
  ddaebm::app::add_report(app);
  ddaebm::app::add_data(app);
  ddaebm::app::add_settings(app);
  ddaebm::app::add_check(app);
  ddaebm::app::add_completion(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const ddaebm::Error& e) {
    fmt::print(stderr, "ddaebm: {}\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "ddaebm: a bug, or out of memory: {}\n", e.what());
    return 1;
  }
  return 0;
}
