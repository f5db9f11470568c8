#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "app/commands.h"
#include "app/inputs.h"
#include "app/jobs.h"
#include "app/presets.h"
#include "app/stop.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/io/plot.h"
#include "ddaebm/train/compare.h"
#include "ddaebm/train/energies.h"
#include "ddaebm/train/ood.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

namespace fs = std::filesystem;

// A number that the paper has, under the name that evaluations give it.
struct PaperNumber {
  const char* name;
  double value;
};

// One model of an artefact: a preset with changes, and what the paper says of it.
struct Cell {
  const char* label;
  const char* preset;
  std::vector<std::string> changes;
  std::vector<PaperNumber> paper;
};

// Models that are shown together. Panels of one folder share their runs.
struct Panel {
  const char* folder;
  std::vector<Cell> cells;
};

// What is done with the trained models besides their evaluation.
enum class Use { none, tell_apart, energies, curves };

struct Artefact {
  const char* name;
  const char* shows;
  const char* needs;  // data, time and memory at the paper's budget
  std::vector<Panel> panels;
  const char* remark;  // why ours cannot be set beside the paper's, where they cannot
  Use use = Use::none;
};

std::vector<Cell> toy_cells(const std::string& data, const std::vector<const char*>& rivals) {
  const std::string name = "data.name=" + data;
  std::vector<Cell> cells;
  static const std::map<std::string, std::pair<const char*, const char*>> presets = {
      {"25gaussians", {"25gaussians-paper", "25gaussians"}},
      {"pinwheel", {"pinwheel-paper", "pinwheel"}},
      {"swissroll", {"swissroll-paper", "swissroll"}}};
  static const std::map<std::string, const char*> rival_presets = {{"MEG", "toy-meg"},
                                                                   {"VERA", "toy-vera"},
                                                                   {"FCE", "toy-fce"},
                                                                   {"BiDVL", "toy-bidvl"},
                                                                   {"WGAN-0GP", "toy-wgan0gp"},
                                                                   {"CoopNets", "toy-coopnets"},
                                                                   {"SSM", "toy-ssm"},
                                                                   {"DSM", "toy-dsm"},
                                                                   {"MLE", "toy-mle"},
                                                                   {"DDGAN", "toy-ddgan"},
                                                                   {"DRL", "toy-drl"},
                                                                   {"EBM-BB", "toy-ebmbb"},
                                                                   {"Score flow", "toy-scoreflow"}};
  for (const char* rival : rivals) cells.push_back({rival, rival_presets.at(rival), {name}, {}});
  const auto& [papers, ours] = presets.at(data);
  cells.push_back({"DDAEBM, the paper's", papers, {}, {}});
  cells.push_back({"DDAEBM", ours, {}, {}});
  return cells;
}

const std::vector<const char*> kAllRivals = {"MLE", "SSM",   "DSM",       "CoopNets", "WGAN-0GP",
                                             "MEG", "VERA",  "FCE",       "BiDVL",    "EBM-BB",
                                             "DRL", "DDGAN", "Score flow"};

// The paper's Table 1: test log-likelihood in nats.
std::vector<Cell> nice_cells() {
  return {{"MLE", "nice-mle", {}, {{"held_out_score", -791}}},
          {"MLE(t)", "nice-mle-t", {}, {{"held_out_score", -879}}},
          {"SSM", "nice-ssm", {}, {{"held_out_score", -2039}}},
          {"DSM", "nice-dsm", {}, {{"held_out_score", -4363}}},
          {"CoopNets", "nice-coopnets", {}, {{"held_out_score", -1465}}},
          {"WGAN-0GP", "nice-wgan0gp", {}, {{"held_out_score", -1214}}},
          {"MEG", "nice-meg", {}, {{"held_out_score", -1023}}},
          {"VERA", "nice-vera", {}, {{"held_out_score", -1021}}},
          {"DDAEBM, the paper's", "mnist-paper", {}, {{"held_out_score", -902}}},
          {"DDAEBM", "mnist-nice", {}, {}}};
}

constexpr const char* kNoFid =
    "The paper's FID has 2048 features of 50,000 samples; FID-768 is another measure, not to be "
    "set "
    "beside it.";

const std::vector<Artefact>& artefacts() {
  static const std::vector<Artefact> all = {
      {"fig-toy",
       "densities and samples on 25-Gaussians and pinwheel",
       "no data; 12 models, about 10 minutes each on a GPU, hours on a CPU; 1 GB",
       {{"25gaussians", toy_cells("25gaussians", {"MEG", "VERA", "FCE", "BiDVL"})},
        {"pinwheel", toy_cells("pinwheel", {"MEG", "VERA", "FCE", "BiDVL"})}},
       "The paper shows pictures only."},
      {"fig-density",
       "densities of every method on 25-Gaussians and pinwheel",
       "no data; 30 models, about 10 minutes each on a GPU, hours on a CPU; 1 GB",
       {{"25gaussians", toy_cells("25gaussians", kAllRivals)},
        {"pinwheel", toy_cells("pinwheel", kAllRivals)}},
       "The paper shows pictures only, of pinwheel."},
      {"fig-swissroll",
       "samples on Swiss roll, and KL against Jeffrey divergence on 25-Gaussians",
       "no data; 5 models, about 10 minutes each on a GPU; 1 GB",
       {{"swissroll", toy_cells("swissroll", {"DDGAN"})},
        {"25gaussians",
         {{"DDAEBM (KL), the paper's", "25gaussians-paper", {"game.divergence=kl"}, {}},
          {"DDAEBM, the paper's", "25gaussians-paper", {}, {}}}}},
       "The paper shows pictures only."},
      {"table-nice",
       "test log-likelihood of NICE as the energy, MNIST",
       "mnist; 10 models, 5 to 30 minutes each on an H200; 4 GB",
       {{"mnist", nice_cells()}},
       "held_out_score is the paper's test log-likelihood in nats, at the end of training; "
       "best_on_validation is that of the iteration that 6,000 images kept aside choose."},
      {"fig-nice",
       "exact samples of NICE above samples of the generator, MNIST",
       "mnist; 4 models, 5 to 30 minutes each on an H200; 4 GB",
       {{"mnist",
         [] {
           auto cells = nice_cells();
           cells.erase(cells.begin(), cells.begin() + 5);
           return cells;
         }()}},
       "The paper shows pictures only."},
      {"table-modes",
       "modes of StackedMNIST and their KL",
       "mnist; 1 model, a day on an H200; 20 GB",
       {{"stackedmnist",
         {{"DDAEBM", "stackedmnist-paper", {}, {{"modes", 1000}, {"modes_kl", 0.033}}}}}},
       ""},
      {"table-cifar10",
       "FID of CIFAR-10 samples",
       "cifar10, Inception weights; 1 model, days on an H200; 26 GB",
       {{"cifar10", {{"DDAEBM", "cifar10-paper", {}, {{"fid", 4.82}}}}}},
       kNoFid},
      {"table-celeba",
       "FID of CelebA 64 x 64 samples",
       "celeba, Inception weights; 1 model, days on an H200; 40 GB",
       {{"celeba64", {{"DDAEBM", "celeba64-paper", {}, {{"fid", 10.29}}}}}},
       kNoFid},
      {"table-ablation",
       "what latent, divergence and posterior are worth, CIFAR-10",
       "cifar10, Inception weights; 4 models, days each on an H200; 26 GB",
       {{"cifar10",
         {{"no latent", "cifar10-paper", {"game.latent=false"}, {{"fid", 10.09}}},
          {"KL", "cifar10-paper", {"game.divergence=kl"}, {{"fid", 4.99}}},
          {"KL without q(z)",
           "cifar10-paper",
           {"game.divergence=kl", "game.posterior_term=false"},
           {{"fid", 4.90}}},
          {"DDAEBM", "cifar10-paper", {}, {{"fid", 4.82}}}}}},
       "The paper's AUROC against SVHN: .23 without latent, .37 with KL, .38 without q(z), .83 in "
       "full. Its FID has 2048 features; FID-768 is another measure, not to be set beside it.",
       Use::tell_apart},
      {"table-ood",
       "AUROC of CIFAR-10 against other images by E(x, 0)",
       "cifar10, the other sets (--ood); 1 model, days on an H200; 26 GB",
       {{"cifar10", {{"DDAEBM", "cifar10-paper", {}, {}}}}},
       "The paper has SVHN .83, Texture .62, CIFAR-100 .60, CelebA .70.",
       Use::tell_apart},
      {"fig-energy",
       "histograms of E(x, 0): faces, the same made again, the same with noise",
       "celeba; 1 model, days on an H200; 40 GB",
       {{"celeba64", {{"DDAEBM", "celeba64-paper", {}, {}}}}},
       "The paper shows pictures only.",
       Use::energies},
      {"fig-steps",
       "FID over training for T = 1, 2, 4, 8, CIFAR-10",
       "cifar10, Inception weights; 4 models, days each on an H200; 26 GB",
       {{"cifar10",
         {{"T = 1", "cifar10-paper", {"diffusion.steps=1"}, {}},
          {"T = 2", "cifar10-paper", {"diffusion.steps=2"}, {}},
          {"DDAEBM", "cifar10-paper", {}, {}},
          {"T = 8", "cifar10-paper", {"diffusion.steps=8"}, {}}}}},
       "The paper shows a picture only.",
       Use::curves},
  };
  return all;
}

struct Options {
  std::string artefact, out = "runs/reproduce", device = "cpu", budget = "paper";
  std::vector<std::string> changes, outside;
  int64_t seeds = 1, jobs = 1;
  bool list = false;
};

double share_of(const std::string& budget) {
  if (budget == "paper") return 1;
  size_t used = 0;
  double share = 0;
  try {
    share = std::stod(budget, &used);
  } catch (const std::exception&) {
  }
  if (used != budget.size() || !(share > 0 && share <= 1)) {
    fail("--budget {}: expected 'paper', or a share of it such as 0.05", budget);
  }
  return share;
}

// The paper's numbers beside ours.
std::string beside_the_paper(const Panel& panel, const Comparison& ours) {
  std::string out;
  for (size_t i = 0; i < panel.cells.size(); ++i) {
    for (const auto& number : panel.cells[i].paper) {
      const SeedNumber* found = ours.rows[i].find(number.name);
      out +=
          fmt::format("| {} | {} | {:g} | {} |\n", panel.cells[i].label, number.name, number.value,
                      found == nullptr ? std::string("–") : fmt::format("{:.4g}", found->mean));
    }
  }
  return out.empty() ? out : "| | | paper | ours |\n|---|---|---|---|\n" + out + "\n";
}

// AUROC of held-out data against each set outside, for every model: by E(x, 0), as the paper has
// it, and by the energies of all times.
std::string tell_apart_table(const Comparison& comparison, const Options& o) {
  if (o.outside.empty()) return "AUROC: none, as no sets were given with --ood.\n\n";
  std::string out = "| AUROC |";
  std::string rule = "|---|";
  for (const auto& name : o.outside) {
    out += fmt::format(" {} |", fs::path(name).stem().string());
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : comparison.rows) {
    if (row.runs.empty()) continue;
    const fs::path run = row.runs.front();
    const DataConfig trained = read_settings(run.string(), {}).data;
    Model model = Model::load(run, parse_device(o.device));
    const auto known = read_reference(trained.name, model, trained, 1);
    model.progress = late_progress(trained.name);
    const UsualProfiles usual(energy_profiles(model, known));
    const auto scored = [&](const std::string& name) {
      return score_set(model, name, read_inputs(name, model, trained, {}), 0, &usual);
    };
    const ScoredSet inside = scored(trained.name);
    std::vector<ScoredSet> outside;
    for (const auto& name : o.outside) outside.push_back(scored(name));
    const auto told = tell_apart(inside, outside, {});
    const auto line = [&](const char* score, const auto& separation) {
      out += fmt::format("| {}, {} |", row.label, score);
      for (const OodRow& of : told) {
        const Interval& auroc = separation(of).auroc;
        out += fmt::format(" {:.3f} [{:.3f}, {:.3f}] |", auroc.value, auroc.low, auroc.high);
      }
      out += "\n";
    };
    line("E(x, 0)", [](const OodRow& of) { return of.clean; });
    line("profile", [](const OodRow& of) { return *of.profile; });
  }
  return out + "\n";
}

// Writes the histograms beside the page.
std::string energy_histograms(const Comparison& comparison, const Options& o,
                              const fs::path& folder, const std::string& name) {
  constexpr int64_t kData = 2000;
  std::string out;
  for (const auto& row : comparison.rows) {
    if (row.runs.empty()) continue;
    const fs::path run = row.runs.front();
    const auto settings = read_settings(run.string(), {});
    Model model = Model::load(run, parse_device(o.device));
    const auto source = open_data(settings.data, torch::kCPU);
    Random random(torch::kCPU);
    const auto sets =
        energy_sets(model, source->units(), source->draw_held_out(kData, random), /*seed=*/0);
    write_png(folder / (name + ".png"), histograms(sets));
    out += fmt::format("![{}]({}.png)\n\n", row.label, name);
  }
  return out;
}

// FID over thousands of images seen, a line a model; writes the chart beside the page.
std::string fid_curves(const Comparison& comparison, const fs::path& folder,
                       const std::string& name) {
  std::vector<Series> lines;
  for (const auto& row : comparison.rows) {
    if (row.runs.empty()) continue;
    Series line{row.label, {}};
    for (const auto& json : read_metrics(row.runs.front() / "metrics.jsonl")) {
      if (!json.contains("images")) continue;
      for (const char* measure : {"fid", "fid768"}) {
        if (!json.contains(measure) || !json[measure].is_number()) continue;
        line.points.emplace_back(json["images"].get<double>() / 1000, json[measure].get<double>());
        break;
      }
    }
    lines.push_back(line);
  }
  const std::string file = name + "-curves.svg";
  write_file(folder / file, line_chart("FID", "thousand images seen", lines, /*log_y=*/true));
  return fmt::format("![FID over images seen]({})\n\n", file);
}

std::vector<Contestant> contestants_of(const Panel& panel, double share, const Options& o) {
  std::vector<Contestant> contestants;
  for (const Cell& cell : panel.cells) {
    auto changes = cell.changes;
    changes.insert(changes.end(), o.changes.begin(), o.changes.end());
    RunSettings settings = read_settings(cell.preset, changes);
    settings.train.iterations =
        std::max<int64_t>(1, std::llround(share * static_cast<double>(settings.train.iterations)));
    contestants.push_back({cell.label, std::move(settings)});
  }
  return contestants;
}

void show_list() {
  for (const auto& artefact : artefacts()) {
    fmt::print("{:<15} {}\n{:<15} needs: {}\n", artefact.name, artefact.shows, "", artefact.needs);
  }
}

void run(const Options& o) {
  if (o.list) return show_list();
  const auto found = std::find_if(artefacts().begin(), artefacts().end(),
                                  [&](const auto& a) { return a.name == o.artefact; });
  if (found == artefacts().end()) {
    std::vector<std::string> names;
    for (const auto& artefact : artefacts()) names.emplace_back(artefact.name);
    fail("reproduce {}: expected one of {}", o.artefact.empty() ? "without a name" : o.artefact,
         fmt::join(names, ", "));
  }
  const double share = share_of(o.budget);
  CompareOptions options;
  options.device = parse_device(o.device);
  options.seeds = o.seeds;
  const fs::path folder = fs::path(o.out) / fmt::format("budget-{}", o.budget);
  stop_on_signals();
  std::string page = fmt::format(
      "# {}\n\n{}. {}{}\n\n", found->name, found->shows,
      share < 1 ? fmt::format("Made with {:g} of the full iterations. ", share) : std::string(),
      found->remark);
  std::vector<Contest> contests;
  for (const Panel& panel : found->panels) {
    options.folder = folder / panel.folder;
    contests.push_back({contestants_of(panel, share, o), options});
  }
  share_out(o.jobs, contests);
  for (size_t i = 0; i < contests.size(); ++i) {
    const Panel& panel = found->panels[i];
    options = contests[i].options;
    const Comparison result = compare(std::move(contests[i].contestants), options, stop_signal);
    if (is_job()) continue;
    if (!result.finished) {
      fmt::print("stopped; the same command goes on\n");
      exit_stopped();
    }
    const std::string figure = fmt::format("{}-{}.svg", found->name, panel.folder);
    if (fs::exists(options.folder / "figure.svg")) {
      fs::copy_file(options.folder / "figure.svg", folder / figure,
                    fs::copy_options::overwrite_existing);
    }
    page += fmt::format("## {}\n\n{}\n{}![{}]({})\n\n", panel.folder, table_of(result),
                        beside_the_paper(panel, result), panel.folder, figure);
    if (found->use == Use::tell_apart) page += tell_apart_table(result, o);
    if (found->use == Use::energies) page += energy_histograms(result, o, folder, found->name);
    if (found->use == Use::curves) {
      page += fid_curves(result, folder, found->name);
      if (!o.outside.empty()) page += tell_apart_table(result, o);
    }
  }
  if (is_job()) return;
  const fs::path file = folder / fmt::format("{}.md", found->name);
  write_file(file, page);
  fmt::print("{}written: {}\n", page, file.string());
}

}  // namespace

void add_reproduce(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "reproduce", "A table or figure of the paper, with its numbers beside ours");
  command->add_option("ARTEFACT", o->artefact, "Its name: --list shows them");
  command->add_flag("--list", o->list, "What there is, and what each needs");
  command->add_option("--budget", o->budget, "'paper', or a share of its iterations such as 0.05")
      ->capture_default_str();
  command->add_option("--seeds", o->seeds, "How many seeds each, for mean and spread")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  add_jobs_option(*command, o->jobs);
  command->add_option("--set", o->changes, "Change a setting of all: --set data.root=/data")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--ood", o->outside, "A set of other images, for tables of AUROC; repeatable")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--out", o->out, "Folder")->capture_default_str();
  command->footer(
      "Runs that several artefacts need are made once; what is finished is kept.\n"
      "Examples:\n"
      "  ddaebm reproduce --list\n"
      "  ddaebm reproduce fig-toy --budget 0.05\n"
      "  ddaebm reproduce table-nice --device cuda --jobs 4");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
