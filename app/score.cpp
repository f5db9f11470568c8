#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/inputs.h"
#include "app/presets.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/ood.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, data, out, device = "cpu", split = "test";
  int64_t n = 10000;
};

// One row a datum.
std::string table_of(const Answers& answers) {
  const bool profiles = !answers.profile.empty();
  std::string text = profiles ? "log_density,profile,answer\n" : "log_density,answer\n";
  for (size_t i = 0; i < answers.in.size(); ++i) {
    text += fmt::format("{}{},{}\n", answers.log_density[i],
                        profiles ? fmt::format(",{}", answers.profile[i]) : "",
                        answers.in[i] ? "in" : "out");
  }
  return text;
}

void run(const Options& o) {
  const std::filesystem::path out = o.out;
  const std::string ending = out.extension().string();
  if (ending != ".csv" && ending != ".npy") {
    fail("-o {}: expected a name that ends in .csv or .npy", o.out);
  }
  Model model = Model::load(o.run, parse_device(o.device));
  model.progress = late_progress("scores");
  const auto threshold = ending == ".csv" ? read_threshold(o.run) : std::nullopt;
  const auto rows =
      read_inputs(o.data, model, read_settings(o.run, {}).data, {.split = o.split, .draws = o.n});
  torch::Tensor scores;
  if (threshold) {
    const Answers answers = answer(model, rows, *threshold);
    scores = torch::tensor(answers.log_density, torch::kDouble);
    write_file(out, table_of(answers));
  } else {
    scores = model.log_density(rows);
    if (ending == ".npy") {
      write_npy(out, scores);
    } else {
      write_csv(out, {{"log_density"}, scores.unsqueeze(1)});
    }
  }
  fmt::print("{} rows: mean {:.6g}, least {:.6g}, greatest {:.6g}; in {}\n", scores.size(0),
             scores.mean().item<double>(), scores.min().item<double>(), scores.max().item<double>(),
             o.out);
}

}  // namespace

void add_score(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("score", "Log-density of every row, in nats; higher means more likely");
  command->add_option("RUN", o->run, "Run folder")->required();
  command->add_option("DATA", o->data, "A .csv, .npy or .npz file, images, or a built-in set")
      ->required();
  command->add_option("-o", o->out, "File: .csv or .npy, one score a row in input order")
      ->required();
  command->add_option("-n", o->n, "Rows to draw from a built-in set")
      ->check(CLI::Range(int64_t{1}, int64_t{100000000}))
      ->capture_default_str();
  command->add_option("--split", o->split, "Of an image set that has both")
      ->check(CLI::IsMember({"train", "test"}))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "A calibrated energy (game.calibrate) or a flow gives the log-density itself; any other\n"
      "gives it up to a constant, so that differences count and the level does not.\n"
      "Where `ddaebm ood --false-alarm` has kept a threshold, a .csv has a further column that "
      "says\n"
      "in or out; with --reference by the profile, which has a column of its own.\n"
      "Examples:\n  ddaebm score runs/sensors new.csv -o scores.csv\n"
      "  ddaebm score runs/cifar10 photos/ -o scores.csv");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
