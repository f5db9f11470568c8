#include "ddaebm/train/ood.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "app/commands.h"
#include "app/inputs.h"
#include "app/presets.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/report.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string run, inside, reference, device = "cpu", split = "test";
  std::vector<std::string> outside;
  int64_t n = 0;
  int64_t most_learnt = kMostLearnt;
  Bootstrap bootstrap;
  double false_alarm = -1;  // none wanted
};

Json to_json(const Interval& number) {
  return {{"value", number.value}, {"low", number.low}, {"high", number.high}};
}
Json to_json(const Separation& s) {
  return {{"auroc", to_json(s.auroc)},
          {"aupr", to_json(s.average_precision)},
          {"fpr95", to_json(s.false_positive_rate)}};
}

// Names of sets; of files and folders the last parts of their paths, where those tell them apart.
std::vector<std::string> shown_names(const std::vector<std::string>& sets) {
  std::vector<std::string> names;
  for (const auto& set : sets) {
    const std::filesystem::path path(set);
    names.push_back((path.has_filename() ? path : path.parent_path()).filename().string());
  }
  return std::set(names.begin(), names.end()).size() == names.size() ? names : sets;
}

// Whether they begin alike, as two readings of one file do.
bool same_data(const torch::Tensor& a, const torch::Tensor& b) {
  const int64_t n = std::min(a.size(0), b.size(0));
  return torch::equal(a.slice(0, 0, n), b.slice(0, 0, n));
}

void show(const std::string& name, int64_t count, const char* scores, const Separation& s) {
  const auto text = [](const Interval& number) {
    return fmt::format("{:.4f} [{:.4f}, {:.4f}]", number.value, number.low, number.high);
  };
  fmt::print("{:<24} {:<7} {:>7}  {:<25} {:<25} {:<25}\n", name, scores, count, text(s.auroc),
             text(s.average_precision), text(s.false_positive_rate));
}

void run(const Options& o) {
  const RunFolder folder{o.run};
  Model model = Model::load(folder.path, parse_device(o.device));
  const int64_t iteration = folder.checkpoints().back();  // before a run that goes on writes more
  const DataConfig trained = read_settings(o.run, {}).data;
  uint64_t draw = o.bootstrap.seed;
  std::optional<UsualProfiles> usual;
  torch::Tensor known;
  if (!o.reference.empty()) {
    // Other draws than those of --in, should both be one distribution.
    known = read_reference(o.reference, model, trained, ~o.bootstrap.seed, o.most_learnt);
    model.progress = late_progress(o.reference);
    usual = UsualProfiles(energy_profiles(model, known));
  }
  const auto read = [&](const std::string& data) {
    InputOptions input{o.split, o.n};
    if (o.n > 0) input.draws = o.n;
    input.seed = draw++;
    const auto rows = read_inputs(data, model, trained, input);
    if (known.defined() && data == o.inside && same_data(known, rows)) {
      fail(
          "--reference {}: the data of --in, to which what is learnt from them fits too well; give "
          "others, such as those that were trained on",
          o.reference);
    }
    model.progress = late_progress(data);
    return score_set(model, data, rows, input.seed, usual ? &*usual : nullptr);
  };
  const ScoredSet inside = read(o.inside);
  std::vector<ScoredSet> outside;
  for (const auto& data : o.outside) outside.push_back(read(data));
  const auto rows = tell_apart(inside, outside, o.bootstrap);
  std::vector<std::string> names = {o.inside};
  names.insert(names.end(), o.outside.begin(), o.outside.end());
  names = shown_names(names);

  Json json = {{"iteration", iteration},
               {"in", o.inside},
               {"in_count", inside.clean.size()},
               {"resamples", o.bootstrap.resamples},
               {"coverage", o.bootstrap.coverage},
               {"seed", o.bootstrap.seed},
               {"out", Json::array()}};
  if (usual) json["reference"] = o.reference;
  std::vector<NumberSet> shown = {{names[0], inside.clean}};
  for (size_t i = 0; i < rows.size(); ++i) {
    Json entry = {{"data", rows[i].name}, {"count", rows[i].count}};
    entry["clean"] = to_json(rows[i].clean);
    if (rows[i].noised) entry["noised"] = to_json(*rows[i].noised);
    entry["typical"] = to_json(rows[i].typical);
    if (rows[i].profile) entry["profile"] = to_json(*rows[i].profile);
    json["out"].push_back(entry);
    shown.push_back({names[i + 1], outside[i].clean});
  }
  if (o.false_alarm >= 0) {
    Threshold threshold{false_alarm_threshold(inside.clean, o.false_alarm), o.false_alarm,
                        iteration, o.inside};
    if (usual) {
      threshold.profile = {false_alarm_threshold(inside.profile, o.false_alarm), *usual};
      json["profile_threshold"] = threshold.profile->score;
    }
    write_threshold(folder.path, threshold);
    json["threshold"] = threshold.score;
    json["false_alarm"] = threshold.false_alarm;
  }
  write_file(folder.path / "ood.json", json.dump(2) + "\n");
  write_png(folder.path / "ood.png", histograms(shown));
  write_report(folder.path);

  fmt::print("in: {}, {} data\n{:<24} {:<7} {:>7}  {:<25} {:<25} {:<25}\n", o.inside,
             inside.clean.size(), "out", "scores", "data", "AUROC", "AUPR", "FPR at 95 % TPR");
  for (size_t i = 0; i < rows.size(); ++i) {
    const OodRow& row = rows[i];
    const auto& name = names[i + 1];
    show(name, row.count, "clean", row.clean);
    if (row.noised) show(name, row.count, "noised", *row.noised);
    show(name, row.count, "typical", row.typical);
    if (row.profile) show(name, row.count, "profile", *row.profile);
  }
  if (o.false_alarm >= 0) {
    const char* kind = usual ? "profile_threshold" : "threshold";
    fmt::print("threshold {:.6g}{}: `ddaebm score {}` now answers in or out\n",
               json[kind].get<double>(), usual ? " of the profile" : "", o.run);
  }
  fmt::print("written: {}, ood.png beside it\n", (folder.path / "ood.json").string());
}

}  // namespace

void add_ood(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "ood", "How well the score tells data like the model's own from other data");
  command->add_option("RUN", o->run, "Run folder")->required();
  const char* kinds = "A .csv, .npy or .npz file, images, or a built-in set";
  command->add_option("--in", o->inside, fmt::format("Data like the model's own. {}", kinds))
      ->required();
  command->add_option("--out", o->outside, "Other data, likewise; may be given several times")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--reference", o->reference,
                      "Data like the model's own but not those of --in, such as its training data, "
                      "to learn from them what is usual: adds `profile`");
  command
      ->add_option("--learn", o->most_learnt,
                   "From how many of --reference, at most; more tell more, and take longer")
      ->check(CLI::Range(int64_t{100}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--split", o->split, "Of image sets that have both")
      ->check(CLI::IsMember({"train", "test"}))
      ->capture_default_str();
  command
      ->add_option("-n", o->n,
                   "The first so many of each set; 0: all (10000 of a built-in distribution)")
      ->check(CLI::Range(int64_t{0}, int64_t{100000000}))
      ->capture_default_str();
  command->add_option("--resamples", o->bootstrap.resamples, "Of the bootstrap")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--seed", o->bootstrap.seed, "Of noise and bootstrap")->capture_default_str();
  command
      ->add_option(
          "--false-alarm", o->false_alarm,
          "Keep a threshold that calls this share of --in out; `score` then answers, by the "
          "profile where there is a --reference, else by log-density")
      ->check(CLI::Range(0.0, 0.99));
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "Scores are log-densities E(x, 0) by the averaged weights; --in should score higher. Each\n"
      "number has a 95 % interval by the bootstrap. clean: the data as they are; noised: with the\n"
      "noise that training gives clean data; typical: by how near a clean score is to the median "
      "of\n"
      "--in, which also finds data that score too high, as smooth images do; profile: by how "
      "usual\n"
      "E(x, t) for all t, the norm of E's gradient at t = 0, octave by octave, and of image "
      "models\n"
      "how textures look to its first and last blocks are together, beside the data of "
      "--reference\n"
      "(of image sets with both, the train split).\n"
      "Images of other sizes are scaled by their shorter side, and the middle square is kept; "
      "grey\n"
      "ones are made RGB where the model wants that.\n"
      "Writes ood.json, ood.png and report.html into the run folder.\n"
      "Examples:\n"
      "  ddaebm ood runs/cifar10 --in cifar10 --reference cifar10 --out svhn.bin --device cuda\n"
      "  ddaebm ood runs/sensors --in good.csv --out faulty.csv --false-alarm 0.01\n"
      "  ddaebm ood runs/photos --in good/ --reference more/ --out bad/ --false-alarm 0.01");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
