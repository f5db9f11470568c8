#include <filesystem>
#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/train/model.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, data, out, device = "cpu";
  int64_t n = 10000;
};

void run(const Options& o) {
  const std::filesystem::path out = o.out;
  const std::string ending = out.extension().string();
  if (ending != ".csv" && ending != ".npy") {
    fail("-o {}: expected a name that ends in .csv or .npy", o.out);
  }
  Model model = Model::load(o.run, parse_device(o.device));
  torch::Tensor rows;
  if (is_toy(o.data)) {
    Random random(torch::kCPU);
    rows = make_toy(o.data)->sample(o.n, random);
  } else {
    rows = read_rows(o.data);
  }
  if (rows.size(1) != model.event().at(0)) {
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
  command->add_option("DATA", o->data, "A .csv, .npy or .npz file, or a built-in set")->required();
  command->add_option("-o", o->out, "File: .csv or .npy, one score a row in input order")
      ->required();
  command->add_option("-n", o->n, "Rows to draw from a built-in set")
      ->check(CLI::Range(int64_t{1}, int64_t{100000000}))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer("Example:\n  ddaebm score runs/sensors new.csv -o scores.csv");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
