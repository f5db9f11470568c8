#include "ddaebm/train/compare.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <sstream>

#include "app/commands.h"
#include "app/jobs.h"
#include "app/presets.h"
#include "app/stop.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/train/model.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string data, out, device = "cpu", budget, base = "ddaebm";
  std::vector<std::string> methods, variants, changes;
  int64_t seeds = 1, jobs = 1;
};

bool is_preset(const std::string& name) {
  const auto names = preset_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Presets of the rivals are named after what their energies are made of.
std::string rival_prefix(const std::string& data) { return data == "mnist" ? "nice-" : "toy-"; }

std::vector<std::string> all_methods(const std::string& data) {
  const std::string prefix = rival_prefix(data);
  std::vector<std::string> methods = {"ddaebm"};
  for (const auto& name : preset_names()) {
    if (name.rfind(prefix, 0) == 0) methods.push_back(name.substr(prefix.size()));
  }
  return methods;
}

// The settings of a method on the data: DDAEBM's own preset of these data, a rival's preset, or any
// other that is named.
RunSettings settings_of(const std::string& method, const Options& o,
                        std::vector<std::string> changes) {
  changes.insert(changes.begin(), "data.name=" + o.data);
  changes.insert(changes.end(), o.changes.begin(), o.changes.end());
  const std::string rival = rival_prefix(o.data) + method;
  if (method == "ddaebm") {
    for (const char* kind : {"", "-nice", "-paper"}) {
      if (is_preset(o.data + kind)) return read_settings(o.data + kind, changes);
    }
    return read_settings("table", changes);
  }
  if (is_preset(rival)) return read_settings(rival, changes);
  if (!is_preset(method) && !std::filesystem::exists(method)) {
    fail("--methods {}: neither a method ({}) nor a preset or settings file", method,
         fmt::join(all_methods(o.data), ", "));
  }
  return read_settings(method, changes);
}

// "LABEL: key=value key=value".
Contestant variant(const std::string& text, const Options& o) {
  const auto colon = text.find(':');
  if (colon == std::string::npos || colon == 0) {
    fail(
        "--variant '{}': expected a name, a colon and settings, such as "
        "'no latent: game.latent=false'",
        text);
  }
  std::vector<std::string> changes;
  std::istringstream words(text.substr(colon + 1));
  for (std::string word; words >> word;) changes.push_back(word);
  return {text.substr(0, colon), settings_of(o.base, o, changes)};
}

void read_budget(const std::string& text, CompareOptions& options) {
  if (text.empty()) return;
  size_t used = 0;
  double number = 0;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(used);
  if (number > 0 && unit == "m") {
    options.minutes = number;
  } else if (number >= 1 && unit.empty()) {
    options.iterations = static_cast<int64_t>(number);
  } else {
    fail("--budget {}: expected iterations, such as 20000, or minutes, such as 5m", text);
  }
}

void run(const Options& o) {
  std::vector<Contest> contests(1);
  auto& [contestants, options] = contests.front();
  options.device = parse_device(o.device);
  options.seeds = o.seeds;
  options.folder = o.out.empty() ? std::filesystem::path("runs") /
                                       ("compare-" + std::filesystem::path(o.data).stem().string())
                                 : std::filesystem::path(o.out);
  read_budget(o.budget, options);
  auto methods = o.methods;
  if (methods.empty() && o.variants.empty()) methods = all_methods(o.data);
  for (const auto& method : methods) contestants.push_back({method, settings_of(method, o, {})});
  for (const auto& text : o.variants) contestants.push_back(variant(text, o));
  stop_on_signals();
  share_out(o.jobs, contests);
  const Comparison result = compare(std::move(contestants), options, stop_signal);
  if (is_job()) return;
  if (!result.finished) {
    fmt::print("stopped; the same command goes on\n");
    exit_stopped();
  }
  const std::string folder = options.folder.string();
  fmt::print("{}in {}: table.md, figure.svg, comparison.json, and a run folder each\n",
             table_of(result), folder);
}

}  // namespace

void add_compare(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "compare", "Several methods on the same data at the same budget: one table, one figure");
  command->add_option("DATA", o->data, "A built-in set, or a table of your own")->required();
  command
      ->add_option("--methods", o->methods,
                   "Names of methods, presets or settings files, by commas; default all")
      ->delimiter(',');
  command
      ->add_option("--variant", o->variants,
                   "DDAEBM with other settings: 'no latent: game.latent=false'")
      ->take_all()
      ->allow_extra_args(false);
  command
      ->add_option("--variants-of", o->base,
                   "The method, preset or settings file that variants change")
      ->capture_default_str();
  command->add_option("--budget", o->budget,
                      "Iterations each, or minutes each such as 5m; default each preset's own");
  command->add_option("--seeds", o->seeds, "How many seeds each, for mean and spread")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  add_jobs_option(*command, o->jobs);
  command->add_option("--set", o->changes, "Change a setting of all: --set train.batch=100")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--out", o->out, "Folder; default runs/compare-DATA");
  command->footer(
      "What is finished in the folder is kept, so that a comparison can be stopped and gone on\n"
      "with, or grow by further methods and seeds.\n"
      "Examples:\n"
      "  ddaebm compare pinwheel --methods ddaebm,vera,ddgan --budget 20000 --seeds 3\n"
      "  ddaebm compare mnist --methods mle,ddaebm --budget 10m --device cuda\n"
      "  ddaebm compare 25gaussians --seeds 3 --jobs 8\n"
      "  ddaebm compare 25gaussians --variant 'T 1: diffusion.steps=1' --variant 'T 4:'\n"
      "  ddaebm compare pinwheel --variants-of vera --variant 'less: game.gamma=0.01'");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
