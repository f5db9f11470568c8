#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/download.h"
#include "ddaebm/data/images.h"
#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"
#include "ddaebm/io/image.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

void list(const std::string& root_setting) {
  const auto root = data_root(root_setting);
  for (const auto& toy : toy_list()) fmt::print("{:<14} {}\n", toy.name, toy.description);
  for (const auto& entry : image_catalogue()) {
    const auto folder = locate(entry, root);
    fmt::print("{:<14} {}; {}\n", entry.name, entry.description,
               folder ? "in " + folder->string() : "fetch: ddaebm data get " + entry.name);
  }
  fmt::print("{:<14} {}\n", "FILE.csv", "numbers, one row a line; comma, semicolon or tab");
  fmt::print("{:<14} {}\n", "FILE.npy", "an array of rows and columns; .npz with one array too");
  fmt::print("{:<14} {}\n", "FILE.npy", "images, uint8 [N, C, H, W] or [N, H, W, C]");
  fmt::print("{:<14} {}\n", "FOLDER", "images (.png, .jpg, .webp), an LMDB of them, or tar shards");
  fmt::print("{:<14} {}\n", "FILE", "one .tar or .tar.gz, IDX (plain or .gz), or CIFAR batch");
}

void get(const std::string& name, const std::string& root_setting, const std::string& url) {
  const ImageSetEntry* entry = find_image_set(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const auto& known : image_catalogue()) names.push_back(known.name);
    fail("data get {}: no such set; expected one of {}", name, fmt::join(names, ", "));
  }
  const auto root = data_root(root_setting);
  if (const auto folder = locate(*entry, root)) {
    fmt::print("{} is in {} already\n", name, folder->string());
    return;
  }
  LateProgress progress;
  DownloadOptions options;
  constexpr int64_t kMiB = 1 << 20;
  options.progress = [&](const std::string& file, int64_t done, int64_t total) {
    progress.update(file + " (MiB)", done / kMiB, total / kMiB);
  };
  options.warn = [&](const std::string& text) {
    progress.finish();
    ReadHooks::warn_on_stderr(text);
  };
  const auto folder = get_image_set(*entry, root, url, options);
  progress.finish();
  fmt::print("{} is in {}\n", name, folder.string());
}

struct InfoOptions {
  DataConfig data;
  std::string out;
};

void line(const char* what, const std::string& text) { fmt::print("{:<18} {}\n", what, text); }

void table_info(const std::string& path) {
  const auto rows = read_rows(path);
  line("rows", fmt::format("{}", rows.size(0)));
  line("columns", fmt::format("{}", rows.size(1)));
  constexpr int64_t kShown = 20;
  for (int64_t i = 0; i < std::min(rows.size(1), kShown); ++i) {
    const auto column = rows.select(1, i);
    line(fmt::format("column {}", i + 1).c_str(),
         fmt::format("mean {:.4g}, deviation {:.4g}, from {:.4g} to {:.4g}",
                     column.mean().item<double>(), column.std(/*unbiased=*/false).item<double>(),
                     column.min().item<double>(), column.max().item<double>()));
  }
}

// n of `size` indices, evenly spread.
std::vector<int64_t> spread(int64_t size, int64_t n) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < std::min(size, n); ++i) indices.push_back(i * size / std::min(size, n));
  return indices;
}

std::string label_text(const torch::Tensor& labels) {
  const auto counts = torch::bincount(labels);
  const auto kinds = counts.nonzero().squeeze(1);
  constexpr int64_t kShown = 20;
  if (kinds.numel() > kShown) {
    const auto there = counts.index_select(0, kinds);
    return fmt::format("{} kinds, {} to {} images each", kinds.numel(), there.min().item<int64_t>(),
                       there.max().item<int64_t>());
  }
  std::string text;
  for (int64_t i = 0; i < kinds.numel(); ++i) {
    const auto kind = kinds[i].item<int64_t>();
    text += fmt::format("{}{}: {}", i > 0 ? ", " : "", kind, counts[kind].item<int64_t>());
  }
  return text;
}

void image_info(const InfoOptions& o) {
  LateProgress progress;
  ReadHooks hooks;
  hooks.progress = [&](int64_t done, int64_t total) {
    progress.update("reading " + o.data.name, done, total);
  };
  const auto train = open_images(o.data, Split::train, hooks);
  const auto test = open_images(o.data, Split::test, hooks);
  const auto& set = train ? train : test;
  if (!set) fail("{}: no images", o.data.name);
  // Of sets that have to be decoded, so many tell enough.
  constexpr int64_t kLook = 10000;
  const auto which = set->files ? spread(set->size(), kLook) : first_indices(set->size());
  const Images images = load_images(*set, which, o.data, hooks);
  progress.finish();

  if (const auto* entry = find_image_set(o.data.name)) {
    line("set", entry->description);
    line("found in", locate(*entry, data_root(o.data.root))->string());
  }
  const auto& pixels = images.pixels;
  const int64_t each = pixels[0].numel();
  line("training images", fmt::format("{}", train ? train->size() : 0));
  line("test images", fmt::format("{}", test ? test->size() : 0));
  line("shape", fmt::format("{} x {} x {} (channels, height, width)", pixels.size(1),
                            pixels.size(2), pixels.size(3)));
  const int64_t bytes = set->size() * each;
  line("bytes in memory",
       fmt::format("{} ({:.2f} GiB)", bytes, static_cast<double>(bytes) / (1024.0 * 1024 * 1024)));
  if (pixels.size(0) < set->size()) {
    line("looked at", fmt::format("{} images, evenly spread", pixels.size(0)));
  }
  std::vector<std::string> mean;
  std::vector<std::string> deviation;
  for (int64_t c = 0; c < pixels.size(1); ++c) {
    // Counted by value: exact, and no copy of the set in float.
    const auto counts =
        torch::bincount(pixels.select(1, c).reshape({-1}), {}, 256).to(torch::kDouble);
    const auto value = torch::arange(256, torch::kDouble) / 255;
    const double total = counts.sum().item<double>();
    const double m = (counts * value).sum().item<double>() / total;
    mean.push_back(fmt::format("{:.4f}", m));
    deviation.push_back(fmt::format(
        "{:.4f}", std::sqrt((counts * (value - m).square()).sum().item<double>() / total)));
  }
  line("pixel mean", fmt::format("{} (of 0 to 1)", fmt::join(mean, " ")));
  line("pixel deviation", fmt::format("{}", fmt::join(deviation, " ")));
  line("labels", images.labels.defined() ? label_text(images.labels) : "none");
  if (o.out.empty()) return;
  constexpr int64_t kPictures = 64;
  constexpr int64_t kColumns = 8;
  const auto shown = torch::tensor(spread(pixels.size(0), kPictures));
  write_png(o.out, image_grid(pixels.index_select(0, shown), kColumns));
  line("picture", o.out);
}

void info(const InfoOptions& o) {
  if (!o.out.empty() && !o.out.ends_with(".png")) {
    fail("-o {}: expected a name that ends in .png", o.out);
  }
  if (is_image_data(o.data.name)) return image_info(o);
  if (!o.out.empty()) fail("-o {}: {} is no image set", o.out, o.data.name);
  for (const auto& toy : toy_list()) {
    if (toy.name != o.data.name) continue;
    line("set", toy.description);
    line("points", "in 2 dimensions, drawn afresh without end; the density is known");
    return;
  }
  if (!std::filesystem::exists(o.data.name)) {
    fail("data info {}: neither a set nor a file; `ddaebm data list` shows the sets", o.data.name);
  }
  table_info(o.data.name);
}

}  // namespace

void add_data(CLI::App& app) {
  auto* command = app.add_subcommand("data", "Data sets: what there is, what it holds, fetch it");
  command->require_subcommand(1);
  command->footer(
      "Examples:\n"
      "  ddaebm data list\n"
      "  ddaebm data get cifar10\n"
      "  ddaebm data info cifar10 -o cifar10.png");
  const char* root_meaning = "Folder of image sets; default $DDAEBM_DATA, else ~/.cache/ddaebm";

  auto root = std::make_shared<std::string>();
  auto* list_command =
      command->add_subcommand("list", "The built-in sets and the files that can be read");
  list_command->add_option("--root", *root, root_meaning);
  list_command->footer("Example:\n  ddaebm data list");
  list_command->callback([root] { list(*root); });

  auto name = std::make_shared<std::string>();
  auto url = std::make_shared<std::string>();
  auto* get_command = command->add_subcommand(
      "get", "Fetch an image set from its official source, compare checksums, unpack");
  get_command->add_option("NAME", *name, "An image set of `ddaebm data list`")->required();
  get_command->add_option("--root", *root, root_meaning);
  get_command->add_option("--url", *url, "Fetch the files from this address instead");
  get_command->footer(
      "A download that was cut goes on from where it was.\n"
      "Examples:\n"
      "  ddaebm data get mnist\n"
      "  ddaebm data get cifar10 --root /data\n"
      "  ddaebm data get cifar10 --url https://mirror.example.org/cifar");
  get_command->callback([=] { get(*name, *root, *url); });

  auto o = std::make_shared<InfoOptions>();
  auto* info_command =
      command->add_subcommand("info", "Number, shape, labels and look of a set or of files");
  info_command->add_option("NAME", o->data.name, "A set of `ddaebm data list`, a folder or a file")
      ->required();
  info_command->add_option("-o", o->out, "Picture of 64 images, .png");
  info_command->add_option("--root", o->data.root, root_meaning);
  info_command->add_option("--size", o->data.size, "Scale to this side first, as data.size does")
      ->check(CLI::Range(0, 4096));
  info_command->footer(
      "Examples:\n"
      "  ddaebm data info cifar10 -o cifar10.png\n"
      "  ddaebm data info photographs/ --size 64 -o photographs.png");
  info_command->callback([o] { info(*o); });
}

}  // namespace ddaebm::app
