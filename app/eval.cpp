#include <map>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/report.h"
#include "ddaebm/metrics/ranking.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/energies.h"
#include "ddaebm/train/evaluation.h"
#include "ddaebm/train/likelihood.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, device = "cpu";
  int64_t samples = 0;  // as many as in training
  uint64_t seed = 0;
  bool energies = false;
  bool log_z = false;
  AnnealingPath path = AnnealingPath::straight;
  AisConfig annealing;
};

// Data held out, for what looks at scores.
torch::Tensor held_out(DataSource& source, uint64_t seed) {
  constexpr int64_t kVectors = 10000, kImages = 1000;
  Random random(torch::kCPU, seed);
  random.restart(Random::kEvaluation, 0);
  return source.draw_held_out(source.event().size() == 3 ? kImages : kVectors, random)
      .to(torch::kCPU);
}

nlohmann::ordered_json describe(const std::vector<NumberSet>& sets) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& set : sets) {
    const auto scores = torch::tensor(set.values, torch::kDouble);
    const auto sorted = std::get<0>(scores.sort());
    const auto quantile = [&](int64_t percent) {
      return sorted[(sorted.size(0) - 1) * percent / 100].item<double>();
    };
    all.push_back({{"name", set.name},
                   {"count", scores.size(0)},
                   {"mean", scores.mean().item<double>()},
                   {"deviation", scores.std(/*unbiased=*/false).item<double>()},
                   {"5%", quantile(5)},
                   {"50%", quantile(50)},
                   {"95%", quantile(95)},
                   {"auroc", auroc(sets.front().values, set.values)}});
  }
  return all;
}

void add_likelihood(Evaluation& result, const Likelihood& found) {
  const auto& forward = found.normaliser.forward;
  const auto& reverse = found.normaliser.reverse;
  const auto mean = [](const NumberSet& set) {
    return torch::tensor(set.values, torch::kDouble).mean().item<double>();
  };
  result.numbers.insert(result.numbers.end(), {{"log_z", forward.log_z},
                                               {"log_z_error", forward.error},
                                               {"log_z_effective", forward.effective},
                                               {"log_z_reverse", reverse.log_z},
                                               {"log_z_reverse_error", reverse.error},
                                               {"log_z_acceptance", found.normaliser.acceptance},
                                               {"log_likelihood", found.mean},
                                               {"log_likelihood_error", found.error},
                                               {"energy_observed", mean(found.energies[0])},
                                               {"energy_expected", mean(found.energies[1])}});
}

void run(const Options& o) {
  const RunFolder folder{o.run};
  const auto device = parse_device(o.device);
  Model model = Model::load(folder.path, device);
  model.progress = late_progress("samples and scores");
  const auto settings = read_settings(o.run, {});
  const auto source = open_data(settings.data, torch::kCPU, {late_progress("reading")});
  const int64_t samples = o.samples > 0 ? o.samples : settings.train.evaluation_samples;
  Evaluation result =
      evaluate(model, *source, settings.data, {o.seed, samples, device, folder.path});
  std::vector<NumberSet> energies;
  if (o.energies) energies = energy_sets(model, source->units(), held_out(*source, o.seed), o.seed);
  if (o.log_z) {
    AisConfig annealing = o.annealing;
    annealing.seed = o.seed;
    annealing.progress = late_progress("annealing");
    const Likelihood found =
        estimate_likelihood(model, held_out(*source, o.seed), o.path, annealing);
    add_likelihood(result, found);
    write_png(folder.path / "calibration.png", histograms(found.energies));
  }
  nlohmann::ordered_json json;
  json["iteration"] = folder.checkpoints().back();
  for (const auto& [name, value] : result.numbers) json[name] = value;
  if (o.energies) {
    json["energies"] = describe(energies);
    write_png(folder.path / "energies.png", histograms(energies));
  }
  write_file(folder.evaluation(), json.dump(2) + "\n");
  if (result.picture.defined()) write_png(folder.path / result.picture_name, result.picture);
  write_report(folder.path);
  show_numbers(result.numbers);
  for (const auto& set : json["energies"]) {
    fmt::print("E of {:<16} mean {:.6g}, deviation {:.4g}, AUROC of real against it {:.4f}\n",
               set["name"].get<std::string>() + ":", set["mean"].get<double>(),
               set["deviation"].get<double>(), set["auroc"].get<double>());
  }
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
  command->add_flag("--energies", o->energies,
                    "Histograms of E(x, 0) of held-out data, of data made again by the generator,\n"
                    "of data with noise: energies.png, and numbers in evaluation.json");
  command->add_flag(
      "--log-z,--calibration", o->log_z,
      "log Z by annealed importance sampling, and the held-out log-likelihood, nats;\n"
      "E of held-out data beside E of points that it expects: calibration.png");
  command
      ->add_option("--path", o->path,
                   "Of the annealing: straight from a Gaussian, or by the\n"
                   "energies of the model's own times")
      ->transform(CLI::CheckedTransformer(
                      std::map<std::string, AnnealingPath>{{"straight", AnnealingPath::straight},
                                                           {"times", AnnealingPath::times}})
                      .description(""))
      ->type_name("straight|times")
      ->default_str("straight");
  command->add_option("--chains", o->annealing.chains, "Of the annealing, each way")
      ->check(CLI::Range(int64_t{2}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--bridges", o->annealing.bridges, "Densities on the way; more are better")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "Known distributions: kl, js, hq, modes, mmd. Files: mean scores of held-out rows and of\n"
      "samples, mmd. Images: those scores; where the Inception network is found (`ddaebm import`)\n"
      "fid and inception_score, or fid768 where its file ends at mixed_7; modes of stackedmnist.\n"
      "Writes evaluation.json, a picture and report.html into the run folder.\n"
      "log_z: by chains from a Gaussian, too low on average; log_z_reverse: by chains back from\n"
      "where those arrived, too high. They agree within their errors where --bridges are enough;\n"
      "log_z_effective says how many chains carry the weight. Of a calibrated energy log_z is 0,\n"
      "and energy_observed, of held-out data, equals energy_expected, of points drawn from it.\n"
      "Examples:\n  ddaebm eval runs/25gaussians\n"
      "  ddaebm eval runs/25gaussians --energies --log-z");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
