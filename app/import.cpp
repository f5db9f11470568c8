#include "ddaebm/train/import.h"

#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/io/torch_checkpoint.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/metrics/inception_import.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::vector<std::string> files, changes;
  std::string out, preset = "cifar10-paper";
  int64_t size = 0;
};

void write_inception(const std::string& file, const std::map<std::string, torch::Tensor>& state,
                     std::string out) {
  const auto tensors = import_inception(file, state);
  if (out.empty()) {
    const auto folder = inception_folder();
    std::filesystem::create_directories(folder);
    out = (folder / kFullInception).string();
  }
  write_safetensors(out, {tensors, {{"network", "inception-2015-12-05"}}});
  fmt::print("{}: the Inception network, for fid and inception_score\n", out);
}

void run(const Options& o) {
  AuthorsCheckpoint all;
  for (const auto& file : o.files) {
    const Pickle pickle = read_torch_checkpoint(file);
    for (const auto& name : pickle.inert_globals) {
      fmt::print(stderr, "{}: names {}, which was neither looked up nor called\n", file, name);
    }
    if (const auto state = inception_state(pickle.value)) {
      if (o.files.size() > 1) fail("{}: the Inception network; import it by itself", file);
      return write_inception(file, *state, o.out);
    }
    auto found = find_authors_networks(file, pickle.value);
    for (auto& [network, tensors] : found.networks) {
      if (!all.networks.emplace(network, std::move(tensors)).second) {
        fail("{}: the {} was in an earlier file already", file, network);
      }
    }
    all.settings.insert(found.settings.begin(), found.settings.end());
    all.notes.insert(all.notes.end(), found.notes.begin(), found.notes.end());
    if (!all.global_step) all.global_step = found.global_step;
  }
  if (o.out.empty()) fail("import: --out RUN is required, the run folder to make");
  auto changes = imported_settings(all);
  changes.insert(changes.end(), o.changes.begin(), o.changes.end());
  RunSettings settings = read_settings(o.preset, changes);
  int64_t size = o.size;
  if (const auto theirs = all.settings.find("image_size");
      size == 0 && theirs != all.settings.end()) {
    size = theirs->second.integer().value_or(0);
  }
  if (size == 0) size = settings.data.size == 0 ? 32 : settings.data.size;
  for (const auto& note : import_checkpoint(all, settings, size, o.out)) fmt::print("{}\n", note);
  fmt::print("{}: images of {}x{}; try: ddaebm sample {} -n 64 -o grid.png\n", o.out, size, size,
             o.out);
}

}  // namespace

void add_import(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand(
      "import",
      "Make a run folder of PyTorch checkpoints of DDAEBM's or DDGAN's authors, or\n"
      "the weights that fid needs of pytorch-fid's file");
  command
      ->add_option("FILES", o->files,
                   "content.pth, or netG_N.pth with netE_N.pth and others; or\n"
                   "pt_inception-2015-12-05-6726825d.pth")
      ->required();
  command->add_option("--out", o->out,
                      "Run folder to make; of the Inception network a file, default\n"
                      "inception2015.safetensors in $DDAEBM_DATA, else ~/.cache/ddaebm");
  command->add_option("--preset", o->preset, "Settings for what the files do not say")
      ->capture_default_str();
  command
      ->add_option("--size", o->size, "Height and width of images; 0: as the files or preset say")
      ->check(CLI::Range(int64_t{0}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--set", o->changes, "Change a setting: --set image_net.channels=64")
      ->take_all()
      ->allow_extra_args(false);
  command->footer(
      "Reads pickles as data: nothing in them is executed. Averaged weights are taken where the\n"
      "file has them.\n"
      "Examples:\n"
      "  ddaebm import content.pth --out runs/authors\n"
      "  ddaebm import netG_1200.pth --out runs/ddgan --preset cifar10-paper\n"
      "  ddaebm import pt_inception-2015-12-05-6726825d.pth");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
