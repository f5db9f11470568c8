#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/report.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/evaluation.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, device = "cpu";
  int64_t samples = 0;  // as many as in training
  uint64_t seed = 0;
};

void run(const Options& o) {
  const RunFolder folder{o.run};
  const auto device = parse_device(o.device);
  Model model = Model::load(folder.path, device);
  model.progress = late_progress("samples and scores");
  const auto settings = read_settings(o.run, {});
  const auto source = open_data(settings.data, torch::kCPU, {late_progress("reading")});
  const int64_t samples = o.samples > 0 ? o.samples : settings.train.evaluation_samples;
  const Evaluation result =
      evaluate(model, *source, settings.data, {o.seed, samples, device, folder.path});
  nlohmann::ordered_json json;
  json["iteration"] = folder.checkpoints().back();
  for (const auto& [name, value] : result.numbers) json[name] = value;
  write_file(folder.evaluation(), json.dump(2) + "\n");
  if (result.picture.defined()) write_png(folder.path / result.picture_name, result.picture);
  write_report(folder.path);
  show_numbers(result.numbers);
  fmt::print("written: {}\n", folder.evaluation().string());
}

}  // namespace

void show_numbers(const std::vector<std::pair<std::string, double>>& numbers) {
  std::string line;
  for (const auto& [name, value] : numbers) line += fmt::format("{} {:.4g}  ", name, value);
  if (!line.empty()) fmt::print("{}\n", line);
}

void add_eval(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("eval", "Every metric that fits the data, for a trained model");
  command->add_option("RUN", o->run, "Run folder")->required();
  command
      ->add_option("--samples", o->samples,
                   "How many samples to draw; default the run's train.evaluation_samples")
      ->check(CLI::Range(int64_t{1000}, int64_t{10000000}));
  command->add_option("--seed", o->seed, "Of the samples")->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "Known distributions: kl, js, hq, modes, mmd. Files: mean scores of held-out rows and of\n"
      "samples, mmd. Images: those scores, fid768 where the Inception network is found, modes of\n"
      "stackedmnist. Writes evaluation.json, a picture and report.html into the run folder.\n"
      "Example:\n  ddaebm eval runs/25gaussians");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
