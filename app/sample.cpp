#include <cmath>
#include <filesystem>
#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/images.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/plot.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, out, device = "cpu";
  int64_t n = 1000;
  uint64_t seed = 0;
};

void run(const Options& o) {
  const std::filesystem::path out = o.out;
  const std::string ending = out.extension().string();
  if (ending != ".csv" && ending != ".npy" && ending != ".safetensors" && ending != ".png") {
    fail("-o {}: expected a name that ends in .csv, .npy, .safetensors or .png", o.out);
  }
  Model model = Model::load(o.run, parse_device(o.device));
  model.progress = late_progress("samples");
  const auto samples = model.sample(o.n, o.seed);
  if (ending == ".csv") {
    if (model.event().size() != 1)
      fail("-o {}: images do not fit a table; use .npy or .png", o.out);
    write_csv(out, {{}, samples.to(torch::kDouble)});
  } else if (ending == ".npy") {
    write_npy(out, samples);
  } else if (ending == ".safetensors") {
    write_safetensors(out, {{{"samples", samples}}, {}});
  } else if (model.event().size() == 3) {
    const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(o.n))));
    write_png(out, image_grid(to_bytes(samples), columns));
  } else {
    if (model.event() != std::vector<int64_t>{2}) {
      fail("-o {}: a picture needs images or 2-D data, this model has {} columns; use .csv or .npy",
           o.out, model.event().at(0));
    }
    const double reach = samples.abs().max().item<double>() * 1.05;
    write_png(out, scatter(samples, {-reach, reach}, 600));
  }
  fmt::print("{} samples in {}\n", o.n, o.out);
}

}  // namespace

void add_sample(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("sample", "Draw samples from a trained model");
  command->add_option("RUN", o->run, "Run folder")->required();
  command->add_option("-n", o->n, "How many")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000000}))
      ->capture_default_str();
  command
      ->add_option("-o", o->out, "File: .csv, .npy, .safetensors, or .png for images and 2-D data")
      ->required();
  command->add_option("--seed", o->seed, "The same seed draws the same samples")
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "Examples:\n"
      "  ddaebm sample runs/25gaussians -n 10000 -o points.csv\n"
      "  ddaebm sample runs/25gaussians -n 10000 -o points.png\n"
      "  ddaebm sample runs/cifar10 -n 64 -o grid.png --device cuda");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
