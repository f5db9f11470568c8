#include "ddaebm/train/export.h"

#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/error.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, out, device = "cpu";
};

void run(const Options& o) {
  const std::filesystem::path out = o.out;
  if (out.extension() != ".pt") {
    fail("-o {}: expected a name that ends in .pt; only TorchScript is written", o.out);
  }
  Model model = Model::load(o.run, parse_device(o.device));
  const auto made = export_torchscript(model, out);
  fmt::print("{}: score(x), as the model's to {:.1e}", o.out, made.score_error);
  if (made.sample) {
    fmt::print("; sample(n), generate(noise...), to {:.1e}\n", made.sample_error);
  } else {
    fmt::print("; no sample(n), since the run cannot sample without gradients\n");
  }
}

}  // namespace

void add_export(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("export", "A model for PyTorch: TorchScript that scores and samples");
  command->add_option("RUN", o->run, "Run folder")->required();
  command->add_option("-o", o->out, "File: .pt")->required();
  command->add_option("--device", o->device, "Where it is to run: cpu, cuda or cuda:N")
      ->capture_default_str();
  command->footer(
      "Needs nothing but PyTorch to use:\n"
      "  model = torch.jit.load('model.pt'); model.score(x); model.sample(100)\n"
      "Scores and samples of the file are compared with the model's before it is called done.\n"
      "Methods that need gradients lose sample(n), or are refused; docs/library.md has a list.\n"
      "Example:\n  ddaebm export runs/25gaussians -o model.pt");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
