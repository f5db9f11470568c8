#include "ddaebm/train/compare.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "ddaebm/data/images.h"
#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/lock.h"
#include "ddaebm/io/markup.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/image_evaluation.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A label as a folder's name.
std::string file_name(const std::string& label) {
  std::string name;
  for (const char c : label) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.';
    if (plain) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  return name;
}

Json read_json(const fs::path& path) {
  return fs::exists(path) ? Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false)
                          : Json();
}

bool is_finished(const fs::path& run, int64_t iterations) {
  const auto json = read_json(run / "evaluation.json");
  return json.is_object() && json.contains("iteration") && json["iteration"] == iterations;
}

fs::path seed_folder(const fs::path& folder, int64_t seed) {
  return folder / fmt::format("seed-{}", seed);
}

// Seconds that an iteration takes, from a short run that is thrown away.
double seconds_an_iteration(RunSettings& settings, const fs::path& cell,
                            const CompareOptions& options, const std::atomic<int>& stop) {
  constexpr int64_t kWarm = 10;
  RunSettings short_run = settings.copy();
  TrainConfig& train_config = short_run.train;
  train_config.iterations = 4 * kWarm;
  train_config.log_every = kWarm;
  train_config.evaluate_every = 0;
  train_config.evaluation_samples = 1000;
  const fs::path folder = cell / ".timing";
  fs::remove_all(folder);
  train(short_run, {folder, options.device, /*resume=*/false, /*quiet=*/true}, stop);
  if (stop != 0) return 1;
  std::map<int64_t, double> at;  // the losses' lines, not the evaluation's
  for (const Json& json : read_metrics(folder / "metrics.jsonl")) {
    if (json.contains("lr")) at[json["iteration"]] = json["seconds"];
  }
  fs::remove_all(folder);
  return (at.rbegin()->second - at.begin()->second) /
         static_cast<double>(at.rbegin()->first - at.begin()->first);
}

// What a budget of minutes was turned into when a cell was begun; an Error where it was another.
std::optional<int64_t> iterations_before(const fs::path& cell, double minutes) {
  const Json kept = read_json(cell / "budget.json");
  if (!kept.is_object()) return {};
  if (kept["minutes"] != minutes) {
    fail("{}: begun with a budget of {} minutes, now {}; choose another --out", cell.string(),
         kept["minutes"].dump(), minutes);
  }
  return kept["iterations"].get<int64_t>();
}

// Finds out how many iterations the minutes allow, and keeps that in the cell's folder.
void measure_budget(RunSettings& settings, const fs::path& cell, const CompareOptions& options,
                    const std::atomic<int>& stop) {
  const double seconds = seconds_an_iteration(settings, cell, options, stop);
  const auto iterations =
      std::max<int64_t>(1, static_cast<int64_t>(60 * options.minutes / seconds));
  if (stop != 0) return;
  fs::create_directories(cell);
  write_file(cell / "budget.json",
             Json{{"minutes", options.minutes}, {"iterations", iterations}}.dump() + "\n");
}

// How often a run is looked at and saved.
void set_pace(RunSettings& settings) {
  TrainConfig& config = settings.train;
  // Models of images are looked at on the way, and those that validation chooses among.
  const auto part = [&](int64_t n) { return std::max<int64_t>(1, config.iterations / n); };
  if (settings.data.logit) {
    config.evaluate_every = part(20);
  } else if (is_image_data(settings.data.name)) {
    // No more often than their settings say, as FID takes its time, but once on the way.
    if (config.evaluate_every > 0) {
      config.evaluate_every = std::min(std::max(config.evaluate_every, part(10)), part(2));
    }
  } else {
    config.evaluate_every = 0;
  }
  config.checkpoint_every = std::min(config.checkpoint_every, part(10));
}

fs::path cell_of(const Contestant& contestant, const CompareOptions& options) {
  return options.folder / file_name(contestant.label);
}

// Gives the settings their budget, unless it is of minutes that have not been measured yet. An
// Error where a run was begun with other settings.
bool set_budget(Contestant& contestant, const CompareOptions& options) {
  RunSettings& settings = contestant.settings;
  const fs::path cell = cell_of(contestant, options);
  if (options.iterations > 0) settings.train.iterations = options.iterations;
  if (options.minutes > 0) {
    const auto before = iterations_before(cell, options.minutes);
    if (!before) return false;
    settings.train.iterations = *before;
  }
  set_pace(settings);
  for (int64_t k = 0; k < options.seeds; ++k) {
    RunSettings of_seed = settings.copy();
    of_seed.seed += k;
    const RunFolder run{seed_folder(cell, of_seed.seed)};
    if (fs::exists(run.config())) check_same_run(of_seed, run);
  }
  return true;
}

bool is_finished(const Contestant& contestant, const CompareOptions& options) {
  const auto& settings = contestant.settings;
  for (int64_t k = 0; k < options.seeds; ++k) {
    const auto run = seed_folder(cell_of(contestant, options), settings.seed + k);
    if (!is_finished(run, settings.train.iterations)) return false;
  }
  return true;
}

// What a job could not train is said in this file of its cell. While a job is at work the other
// file is there, and stays where it was killed.
fs::path failures_file(const fs::path& cell) { return cell / "failures.json"; }
fs::path begun_file(const fs::path& cell) { return cell / ".begun"; }

std::vector<std::string> failures_of_job(const fs::path& cell) {
  if (fs::exists(begun_file(cell))) {
    return {"the job that trained it was killed; the same command tries it again"};
  }
  const Json kept = read_json(failures_file(cell));
  return kept.is_array() ? kept.get<std::vector<std::string>>() : std::vector<std::string>();
}

// The score of held-out data where that of validation data was best.
std::optional<double> best_on_validation(const fs::path& run) {
  std::optional<double> best, chosen;
  for (const Json& json : read_metrics(run / "metrics.jsonl")) {
    if (!json.contains("validation_score")) continue;
    if (!json["validation_score"].is_number() || !json["held_out_score"].is_number()) continue;
    const double score = json["validation_score"];
    if (best && score <= *best) continue;
    best = score;
    chosen = json["held_out_score"].get<double>();
  }
  return chosen;
}

// In the order in which they are shown; others follow.
const std::vector<std::string> kOrder = {"kl",
                                         "js",
                                         "hq",
                                         "modes",
                                         "modes_kl",
                                         "fid",
                                         "fid768",
                                         "inception_score",
                                         "mmd",
                                         "held_out_score",
                                         "best_on_validation",
                                         "sample_score",
                                         "seconds"};

// Over the runs; a number that one of them lacks, being not finite, is left out.
std::vector<SeedNumber> numbers_of(const std::vector<fs::path>& runs) {
  std::map<std::string, std::vector<double>> values;
  for (const auto& run : runs) {
    const Json evaluation = read_json(run / "evaluation.json");
    for (const auto& [name, value] : evaluation.items()) {
      if (value.is_number() && name != "iteration" && name != "images") {
        values[name].push_back(value);
      }
    }
    if (const auto best = best_on_validation(run)) values["best_on_validation"].push_back(*best);
  }
  // Seeds that run side by side share their time.
  if (runs.size() > 1) values.erase("seconds");
  auto numbers = summary(values, runs.size());
  const auto place = [](const SeedNumber& number) {
    return std::find(kOrder.begin(), kOrder.end(), number.name) - kOrder.begin();
  };
  std::stable_sort(numbers.begin(), numbers.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return numbers;
}

// The panels of a run's picture, which lie side by side with white gaps.
std::vector<torch::Tensor> panels(const torch::Tensor& picture, int64_t count) {
  constexpr int64_t kGap = 8;
  const int64_t width = (picture.size(1) - (count - 1) * kGap) / count;
  std::vector<torch::Tensor> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(picture.narrow(1, i * (width + kGap), width));
  }
  return out;
}

// Half as wide and high.
torch::Tensor smaller(const torch::Tensor& picture) {
  const int64_t h = picture.size(0) / 2;
  const int64_t w = picture.size(1) / 2;
  const auto even = picture.slice(0, 0, 2 * h).slice(1, 0, 2 * w).to(torch::kFloat);
  return even.reshape({h, 2, w, 2, 3}).mean({1, 3}).round().to(torch::kUInt8).contiguous();
}

// What a run shows: the data, its density, its samples; an undefined picture where it has none.
struct Shown {
  torch::Tensor data, density, samples;
};
Shown shown(const fs::path& run) {
  if (fs::exists(run / "density.png")) {
    const auto parts = panels(read_png(run / "density.png"), 3);
    return {smaller(parts[1]), smaller(parts[0]), smaller(parts[2])};
  }
  if (!fs::exists(run / "samples.png")) return {};
  const auto picture = read_png(run / "samples.png");
  // Grids of equal height and width; three of them where exact samples are between.
  const auto count = static_cast<int64_t>(
      std::lround(static_cast<double>(picture.size(1)) / static_cast<double>(picture.size(0))));
  const auto parts = panels(picture, count);
  return {parts.back().contiguous(), count > 2 ? parts[1].contiguous() : torch::Tensor(),
          parts.front().contiguous()};
}

void write_figure(const fs::path& path, const Comparison& comparison) {
  std::vector<FigureColumn> columns;
  for (const auto& row : comparison.rows) {
    if (row.runs.empty()) continue;
    const Shown of = shown(row.runs.front());
    if (!of.samples.defined()) continue;
    if (columns.empty()) columns.push_back({"data", {of.data}});
    columns.push_back({row.label, {of.density, of.samples}});
  }
  if (!columns.empty()) write_file(path, figure(columns));
}

void write_json(const fs::path& path, const Comparison& comparison) {
  Json json;
  for (const auto& row : comparison.rows) {
    Json& out = json[row.label];
    out["seeds"] = row.runs.size();
    out["iterations"] = row.iterations;
    for (const auto& number : row.numbers) {
      out[number.name] = {{"mean", number.mean}, {"deviation", number.deviation}};
    }
    if (!row.failures.empty()) out["failures"] = row.failures;
  }
  write_file(path, json.dump(2) + "\n");
}

// Gives a run that begins what an earlier one has worked out of the training images; it takes them
// only if its data are the same.
void lend_statistics(const Comparison& so_far, const fs::path& run) {
  for (const auto& row : so_far.rows) {
    for (const auto& from : row.runs) {
      for (const auto& file : fs::directory_iterator(from)) {
        if (!file.path().filename().string().ends_with(kReferenceStatistics)) continue;
        const fs::path to = run / file.path().filename();
        if (fs::exists(to)) continue;
        fs::create_directories(run);
        const fs::path part = to.string() + ".part";  // whole or not at all
        fs::copy_file(file.path(), part, fs::copy_options::overwrite_existing);
        fs::rename(part, to);
      }
    }
  }
}

// Trains one contestant's seeds. What ends one of them ends up in the row; settings that differ
// from those that were begun with are an Error.
ComparedRow contest(Contestant& contestant, const CompareOptions& options, const Comparison& so_far,
                    const std::atomic<int>& stop) {
  RunSettings& settings = contestant.settings;
  const fs::path cell = cell_of(contestant, options);
  ComparedRow row;
  row.label = contestant.label;
  if (options.portion == Portion::rest) row.failures = failures_of_job(cell);
  bool left = row.failures.empty();  // to be trained
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const Error& error) {
      row.failures.emplace_back(error.what());
    }
  };
  if (!set_budget(contestant, options)) {
    if (left) attempt([&] { measure_budget(settings, cell, options, stop); });
    if (stop != 0 || !row.failures.empty()) return row;
    set_budget(contestant, options);
  }
  row.iterations = settings.train.iterations;
  left = left && !is_finished(contestant, options);
  const bool quiet = options.portion == Portion::unclaimed;
  if (!quiet && (left || options.portion == Portion::all)) {
    fmt::print(stderr, "{}: {}\n", contestant.label,
               left ? fmt::format("{} iterations", row.iterations) : "finished before");
  }
  if (left && options.seeds > 1 && (settings.data.logit || !is_image_data(settings.data.name))) {
    const TrainOptions training{cell, options.device, /*resume=*/true, quiet};
    attempt([&] { row.failures = train_seeds(settings, training, options.seeds, stop).failures; });
  } else if (left) {
    for (int64_t k = 0; k < options.seeds && stop == 0; ++k) {
      RunSettings of_seed = settings.copy();
      of_seed.seed += k;
      const TrainOptions training{seed_folder(cell, of_seed.seed), options.device,
                                  /*resume=*/true, quiet};
      lend_statistics(so_far, training.folder);
      attempt([&] { train(of_seed, training, stop); });
    }
  }
  for (int64_t k = 0; k < options.seeds; ++k) {
    const auto run = seed_folder(cell, settings.seed + k);
    if (is_finished(run, row.iterations)) row.runs.push_back(run);
  }
  row.numbers = numbers_of(row.runs);
  return row;
}

// As one of several jobs: what others have begun, or could not train, is passed over.
void contest_if_unclaimed(Contestant& contestant, const CompareOptions& options,
                          Comparison& comparison, const std::atomic<int>& stop) {
  const fs::path cell = cell_of(contestant, options);
  fs::create_directories(cell);
  const auto claim = FolderLock::unless_taken(cell);
  if (!claim || !failures_of_job(cell).empty()) return;
  write_file(begun_file(cell), "");
  std::vector<std::string> failures;
  try {
    comparison.rows.push_back(contest(contestant, options, comparison, stop));
    failures = comparison.rows.back().failures;
  } catch (const std::exception& error) {
    failures.emplace_back(error.what());
  }
  if (!failures.empty()) write_file(failures_file(cell), Json(failures).dump(2) + "\n");
  fs::remove(begun_file(cell));
}

// Each has a folder of its own.
void check_labels(const std::vector<Contestant>& contestants) {
  std::map<std::string, std::string> taken;
  for (const auto& contestant : contestants) {
    const std::string name = file_name(contestant.label);
    if (name.find_first_not_of('.') == std::string::npos) {
      fail("'{}' cannot name a folder; use letters or digits", contestant.label);
    }
    const auto [other, is_new] = taken.emplace(name, contestant.label);
    if (!is_new) {
      fail("'{}' and '{}' would share the folder {}; rename one", other->second, contestant.label,
           name);
    }
  }
}

}  // namespace

const SeedNumber* ComparedRow::find(const std::string& name) const {
  for (const auto& number : numbers) {
    if (number.name == name) return &number;
  }
  return nullptr;
}

std::string table_of(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const auto& row : comparison.rows) {
    for (const auto& number : row.numbers) {
      if (std::find(names.begin(), names.end(), number.name) == names.end()) {
        names.push_back(number.name);
      }
    }
  }
  std::string out = "| |";
  std::string rule = "|---|";
  for (const auto& name : names) {
    out += fmt::format(" {} |", name);
    rule += "---|";
  }
  out += " iterations | seeds |\n" + rule + "---|---|\n";
  for (const auto& row : comparison.rows) {
    out += fmt::format("| {} |", row.label);
    for (const auto& name : names) {
      const SeedNumber* number = row.find(name);
      if (number == nullptr) {
        out += " – |";
      } else if (row.runs.size() > 1) {
        out += fmt::format(" {:.4g} ± {:.2g} |", number->mean, number->deviation);
      } else {
        out += fmt::format(" {:.4g} |", number->mean);
      }
    }
    out += fmt::format(" {} | {} |\n", row.iterations, row.runs.size());
  }
  return out;
}

int64_t prepare_jobs(std::vector<Contestant>& contestants, const CompareOptions& options,
                     const std::atomic<int>& stop) {
  check_labels(contestants);
  std::vector<Contestant*> unmeasured;
  for (auto& contestant : contestants) {
    if (!set_budget(contestant, options)) unmeasured.push_back(&contestant);
    fs::remove(failures_file(cell_of(contestant, options)));
    fs::remove(begun_file(cell_of(contestant, options)));
  }
  for (auto* contestant : unmeasured) {
    try {
      measure_budget(contestant->settings, cell_of(*contestant, options), options, stop);
    } catch (const Error&) {
      continue;  // a job will say so
    }
    if (stop != 0) return 0;
    set_budget(*contestant, options);
  }
  return std::count_if(contestants.begin(), contestants.end(),
                       [&](const auto& one) { return !is_finished(one, options); });
}

CompareProgress progress_of(const std::vector<Contestant>& contestants,
                            const CompareOptions& options) {
  CompareProgress progress;
  const auto cells = static_cast<double>(contestants.size());
  for (const auto& contestant : contestants) {
    const fs::path cell = cell_of(contestant, options);
    int64_t iterations = contestant.settings.train.iterations;
    if (options.minutes > 0) {
      const auto known = iterations_before(cell, options.minutes);
      if (!known) continue;
      iterations = *known;
    }
    double done = 0;
    for (int64_t k = 0; k < options.seeds; ++k) {
      const fs::path run = seed_folder(cell, contestant.settings.seed + k);
      if (is_finished(run, iterations)) {
        done += 1;
        continue;
      }
      const auto lines = read_metrics(run / "metrics.jsonl");
      if (lines.empty()) continue;
      done += lines.back()["iteration"].get<double>() / static_cast<double>(iterations);
    }
    const auto all = static_cast<double>(options.seeds);
    if (fs::exists(failures_file(cell))) done = all;  // it will get no further
    if (done > 0 && done < all) progress.training.push_back(contestant.label);
    progress.done += done / all / cells;
  }
  return progress;
}

Comparison compare(std::vector<Contestant> contestants, const CompareOptions& options,
                   const std::atomic<int>& stop) {
  check_labels(contestants);
  fs::create_directories(options.folder);
  Comparison comparison;
  for (auto& contestant : contestants) {
    if (stop != 0) return comparison;
    if (options.portion == Portion::unclaimed) {
      contest_if_unclaimed(contestant, options, comparison, stop);
      continue;
    }
    comparison.rows.push_back(contest(contestant, options, comparison, stop));
    for (const auto& failure : comparison.rows.back().failures) {
      fmt::print(stderr, "{}: {}\n", contestant.label, failure);
    }
    write_json(options.folder / "comparison.json", comparison);
    write_file(options.folder / "table.md", table_of(comparison));
  }
  if (stop != 0 || options.portion == Portion::unclaimed) return comparison;
  comparison.finished = true;
  write_figure(options.folder / "figure.svg", comparison);
  return comparison;
}

}  // namespace ddaebm
