#include <cstdlib>
#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"
#include "app/stop.h"

#include <fmt/format.h>

#include "ddaebm/dist/launch.h"
#include "ddaebm/error.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string settings, out, device = "cpu", on_divergence;
  std::vector<std::string> changes;
  int64_t seed = -1, seeds = 1, ranks = 1;
  bool resume = false, quiet = false;
};

// The command line of one rank.
std::vector<std::string> rank_arguments(const Options& o, const std::vector<std::string>& changes) {
  std::vector<std::string> all = {"ddaebm", "train", o.settings, "--device", o.device};
  for (const auto& change : changes) all.insert(all.end(), {"--set", change});
  if (!o.out.empty()) all.insert(all.end(), {"--out", o.out});
  if (o.resume) all.emplace_back("--resume");
  if (o.quiet) all.emplace_back("--quiet");
  return all;
}

void run(const Options& o) {
  auto changes = o.changes;
  if (o.seed >= 0) changes.push_back(fmt::format("seed={}", o.seed));
  if (!o.on_divergence.empty()) {
    changes.push_back(fmt::format("train.on_divergence={}", o.on_divergence));
  }
  const auto place = place_of_process([](const char* name) { return std::getenv(name); });
  if ((o.ranks > 1 || place) && o.seeds > 1) fail("--seeds trains in one process, without ranks");
  if (o.ranks > 1) {
    if (place) fail("--ranks {}: a launcher has started {} ranks already", o.ranks, place->size);
    stop_on_signals();
    std::fflush(nullptr);
    std::_Exit(run_local_ranks(o.ranks, rank_arguments(o, changes), stop_signal));
  }
  RunSettings settings = read_settings(o.settings, changes);
  TrainOptions options;
  options.place = place;
  options.device = parse_device(
      place && o.device == "cuda" ? fmt::format("cuda:{}", place->local_rank) : o.device);
  options.resume = o.resume;
  options.quiet = o.quiet || (place && place->rank > 0);
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
  if (place && place->rank > 0) {
    if (!result.finished) exit_stopped();
    return;
  }
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
  command->add_option("--ranks", o->ranks, "Train with this many processes on this machine")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--on-divergence", o->on_divergence, "Short for --set train.on_divergence=...")
      ->check(CLI::IsMember({"stop", "rollback"}));
  command->add_flag("--resume", o->resume, "Go on from the folder's newest checkpoint");
  command->add_flag("--quiet", o->quiet, "No progress line");
  command->footer(
      "Examples:\n"
      "  ddaebm train 25gaussians\n"
      "  ddaebm train pinwheel-paper --set train.iterations=20000 --out runs/short\n"
      "  ddaebm train table --set data.name=measurements.csv --device cuda\n"
      "  ddaebm train pinwheel --seeds 5 --device cuda\n"
      "  ddaebm train 25gaussians --ranks 2\n"
      "  torchrun --nproc-per-node 8 --no-python ddaebm train cifar10 --device cuda\n"
      "  ddaebm train runs/25gaussians --resume");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
