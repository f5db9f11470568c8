#include <filesystem>
#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/images.h"
#include "ddaebm/data/source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, data, out, device = "cpu", split = "test";
  int64_t n = 10000;
};

// Images in [-1, 1], brought to the model's size.
torch::Tensor read_pictures(const Options& o, const std::vector<int64_t>& event) {
  DataConfig data;
  data.name = o.data;
  data.size = event.at(1);
  const Split split = o.split == "train" ? Split::train : Split::test;
  auto set = open_images(data, split, {});
  if (!set) set = open_images(data, Split::train, {});
  if (!set) fail("{}: no images", o.data);
  auto pixels = load_images(*set, first_indices(set->size()), data, {}).pixels;
  if (pixels.size(1) == 1 && event.at(0) == 3) pixels = pixels.expand({-1, 3, -1, -1});
  return scaled(pixels);
}

void run(const Options& o) {
  const std::filesystem::path out = o.out;
  const std::string ending = out.extension().string();
  if (ending != ".csv" && ending != ".npy") {
    fail("-o {}: expected a name that ends in .csv or .npy", o.out);
  }
  Model model = Model::load(o.run, parse_device(o.device));
  model.progress = late_progress("scores");
  torch::Tensor rows;
  if (is_toy(o.data)) {
    Random random(torch::kCPU);
    rows = make_toy(o.data)->sample(o.n, random);
  } else if (model.event().size() == 3) {
    rows = read_pictures(o, model.event());
  } else {
    rows = read_rows(o.data);
  }
  if (model.event().size() == 1 && rows.size(1) != model.event().at(0)) {
    fail("{}: {} columns, the model of {} was trained on {}", o.data, rows.size(1), o.run,
         model.event().at(0));
  }
  const auto scores = model.log_density(rows);
  if (ending == ".npy") {
    write_npy(out, scores);
  } else {
    write_csv(out, {{"log_density"}, scores.unsqueeze(1)});
  }
  fmt::print("{} rows: mean {:.6g}, least {:.6g}, greatest {:.6g}; in {}\n", scores.size(0),
             scores.mean().item<double>(), scores.min().item<double>(), scores.max().item<double>(),
             o.out);
}

}  // namespace

void add_score(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "score", "Log-density, not normalised, of every row; higher means more likely");
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
      "Example:\n  ddaebm score runs/sensors new.csv -o scores.csv\n"
      "  ddaebm score runs/cifar10 photos/ -o scores.csv");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
