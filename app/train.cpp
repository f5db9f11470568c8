#include <csignal>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>

#include "ddaebm/train/model.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm::app {
namespace {

std::atomic<int> stop_signal{0};

// The first signal asks for a checkpoint and an end; a second one ends at once.
void ask_to_stop(int signal) {
  if (stop_signal.exchange(signal) != 0) std::_Exit(128 + signal);
}

struct Options {
  std::string settings, out, device = "cpu";
  std::vector<std::string> changes;
  int64_t seed = -1;
  bool resume = false, quiet = false;
};

void run(const Options& o) {
  auto changes = o.changes;
  if (o.seed >= 0) changes.push_back(fmt::format("seed={}", o.seed));
  RunSettings settings = read_settings(o.settings, changes);
  TrainOptions options;
  options.device = parse_device(o.device);
  options.resume = o.resume;
  options.quiet = o.quiet;
  const std::filesystem::path given = o.settings;
  if (!o.out.empty()) {
    options.folder = o.out;
  } else if (std::filesystem::exists(given / "config.toml")) {
    options.folder = given;
  } else {
    options.folder = std::filesystem::path("runs") / given.stem();
    if (settings.seed != 0) options.folder += fmt::format("-seed{}", settings.seed);
  }
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
  const TrainResult result = train(settings, options, stop_signal);
  const std::string folder = options.folder.string();
  if (!result.finished) {
    fmt::print("stopped; continue with: ddaebm train {} --resume\n", folder);
    std::fflush(nullptr);
    std::_Exit(128 + stop_signal);
  }
  show_numbers(result.numbers);
  fmt::print("report: {}/report.html\n", folder);
}

}  // namespace

void add_train(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("train", "Train a model into a run folder");
  command->add_option("SETTINGS", o->settings, "A preset, a .toml file, or a run folder to resume")
      ->required();
  command->add_option("--set", o->changes, "Change a setting: --set train.lr=3e-4")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--out", o->out, "Run folder; default runs/NAME");
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--seed", o->seed, "Short for --set seed=N");
  command->add_flag("--resume", o->resume, "Go on from the folder's newest checkpoint");
  command->add_flag("--quiet", o->quiet, "No progress line");
  command->footer(
      "Examples:\n"
      "  ddaebm train 25gaussians\n"
      "  ddaebm train pinwheel-paper --set train.iterations=20000 --out runs/short\n"
      "  ddaebm train table --set data.name=measurements.csv --device cuda\n"
      "  ddaebm train runs/25gaussians --resume");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
