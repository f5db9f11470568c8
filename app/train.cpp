#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"
#include "app/stop.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string settings, out, device = "cpu";
  std::vector<std::string> changes;
  int64_t seed = -1, seeds = 1;
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
  stop_on_signals();
  const std::string folder = options.folder.string();
  const auto stopped = [](const std::string& how_to_go_on) {
    fmt::print("stopped; continue with: ddaebm train {} --resume\n", how_to_go_on);
    exit_stopped();
  };
  if (o.seeds > 1) {
    const SeedsResult result = train_seeds(settings, options, o.seeds, stop_signal);
    for (const auto& failure : result.failures) fmt::print(stderr, "ddaebm: {}\n", failure);
    if (!result.finished) {
      std::string how =
          fmt::format("{} --seeds {} --out {} --device {}", o.settings, o.seeds, folder, o.device);
      for (const auto& change : changes) how += fmt::format(" --set '{}'", change);
      stopped(how);
    }
    for (const auto& [name, mean, deviation] : result.numbers) {
      fmt::print("{:<16} {:.6g} +- {:.2g}\n", name, mean, deviation);
    }
    fmt::print("each run: {}/seed-*, together: {}/seeds.json\n", folder, folder);
    if (!result.failures.empty()) fail("{} of {} seeds failed", result.failures.size(), o.seeds);
    return;
  }
  const TrainResult result = train(settings, options, stop_signal);
  if (!result.finished) stopped(folder);
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
  command->add_option("--seeds", o->seeds, "Train this many seeds at once, from the seed on")
      ->check(CLI::Range(1, 32));
  command->add_flag("--resume", o->resume, "Go on from the folder's newest checkpoint");
  command->add_flag("--quiet", o->quiet, "No progress line");
  command->footer(
      "Examples:\n"
      "  ddaebm train 25gaussians\n"
      "  ddaebm train pinwheel-paper --set train.iterations=20000 --out runs/short\n"
      "  ddaebm train table --set data.name=measurements.csv --device cuda\n"
      "  ddaebm train pinwheel --seeds 5 --device cuda\n"
      "  ddaebm train runs/25gaussians --resume");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
