#include "ddaebm/metrics/fid.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/images.h"
#include "ddaebm/data/jpeg.h"
#include "ddaebm/error.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/metrics/feature_sets.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/progress.h"

namespace ddaebm::app {
namespace {

constexpr int64_t kBatch = 1000;        // images read at once
constexpr int64_t kNeighbours = 10000;  // images that precision and recall look at

struct Options {
  std::string a, b, save, weights, root, split = "train", device = "cpu";
  int64_t n = 0, size = 0;
  bool jpeg = false;
};

// One side: its statistics and, where it was given as images, their features.
struct Side {
  FeatureStatistics statistics;
  torch::Tensor features;  // [N, D], or undefined
};

bool is_statistics(const std::string& name) { return name.ends_with(".npz"); }

// Images that come in batches, as bytes in three channels.
class Pictures {
 public:
  Pictures(const std::string& name, const Options& o) {
    data_.name = name;
    data_.root = o.root;
    data_.size = o.size;
    if (name.ends_with(".npy") && !is_image_data(name)) {
      set_.stored.pixels = drawn_samples(name);
    } else {
      if (!is_image_data(name)) {
        fail("{}: neither images nor statistics; `ddaebm data list` shows what can be read", name);
      }
      const ReadHooks hooks{late_progress("reading " + name)};
      auto found = open_images(data_, o.split == "test" ? Split::test : Split::train, hooks);
      if (!found) fail("{}: has no {} images; choose with --split", name, o.split);
      set_ = std::move(*found);
    }
    size_ = o.n > 0 ? std::min(o.n, set_.size()) : set_.size();
  }

  int64_t size() const { return size_; }
  torch::Tensor batch(int64_t first) const {
    std::vector<int64_t> which;
    for (int64_t i = first; i < std::min(first + kBatch, size_); ++i) which.push_back(i);
    const auto pixels = load_images(set_, which, data_, {}).pixels;
    return pixels.size(1) == 1 ? pixels.expand({-1, 3, -1, -1}) : pixels;
  }

 private:
  // What `ddaebm sample -o FILE.npy` writes: numbers in [-1, 1].
  static torch::Tensor drawn_samples(const std::string& name) {
    const auto samples = read_npy(name);
    if (!samples.is_floating_point() || samples.dim() != 4 ||
        (samples.size(1) != 3 && samples.size(1) != 1)) {
      fail("{}: {} [{}]; expected images: uint8, or samples in [-1, 1], [N, C, H, W]", name,
           c10::toString(samples.scalar_type()), fmt::join(samples.sizes(), ", "));
    }
    return to_bytes(samples);
  }

  DataConfig data_;
  ImageSet set_;
  int64_t size_ = 0;
};

Side of_images(const std::string& name, const Options& o, const Inception& network, bool jpeg) {
  const Pictures pictures(name, o);
  if (pictures.size() < 2) fail("{}: {} images; 2 at least are needed", name, pictures.size());
  Progress progress("features of " + name, pictures.size());
  Moments moments;
  std::vector<torch::Tensor> features;
  for (int64_t first = 0; first < pictures.size(); first += kBatch) {
    const auto images = pictures.batch(first);
    // Parts of a batch, so that there is something to see on a CPU.
    for (const auto& part : images.split(o.device == "cpu" ? 50 : kBatch)) {
      features.push_back(network.features(jpeg ? through_jpeg(part) : part));
      moments.add(features.back());
      progress.update(moments.count());
    }
  }
  progress.finish();
  const auto source = fmt::format("{} {} size {}, first {}{}", name, o.split, o.size,
                                  moments.count(), jpeg ? ", through JPEG of quality 75" : "");
  return {moments.statistics(network.settings(), source), torch::cat(features)};
}

void check_fits(const std::string& name, const FeatureStatistics& statistics,
                const Inception& network) {
  if (statistics.mean.size(0) == network.width()) return;
  fail(
      "{}: statistics of {} features, the Inception network at hand gives {}; name another with "
      "--inception, or make statistics anew with --save",
      name, statistics.mean.size(0), network.width());
}

void run(const Options& o) {
  if (o.b.empty() && o.save.empty()) fail("fid: name a second set to compare with, or --save FILE");
  if (!o.save.empty() && !is_statistics(o.save)) {
    fail("--save {}: expected a name that ends in .npz", o.save);
  }
  if (is_statistics(o.a) && o.jpeg) fail("--jpeg: {} holds statistics, not images", o.a);
  if (is_statistics(o.a) && !o.save.empty()) fail("--save: {} holds statistics already", o.a);

  std::vector<std::string> names = {o.a};
  if (!o.b.empty()) names.push_back(o.b);
  std::vector<Side> sides(names.size());
  std::optional<Inception> network;
  if (!std::all_of(names.begin(), names.end(), is_statistics)) {
    const auto options = torch::TensorOptions(torch::kFloat).device(parse_device(o.device));
    network.emplace(inception_path(o.weights), options);
  }
  // What can be wrong with a file is told before the long work.
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_statistics(names[i])) continue;
    sides[i].statistics = read_statistics(names[i]);
    if (network) check_fits(names[i], sides[i].statistics, *network);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_statistics(names[i])) sides[i] = of_images(names[i], o, *network, o.jpeg && i == 0);
  }
  if (!o.save.empty()) {
    write_statistics(o.save, sides[0].statistics);
    fmt::print("statistics of {} images in {}\n", sides[0].statistics.count, o.save);
  }
  if (o.b.empty()) return;
  std::vector<std::pair<std::string, double>> numbers = {
      {fid_name(sides[0].statistics.mean.size(0)),
       frechet_distance(sides[0].statistics, sides[1].statistics)}};
  const auto& fake = sides[0].features;
  const auto& real = sides[1].features;
  if (fake.defined() && real.defined()) {
    const Kid kid = kernel_inception_distance(real, fake);
    numbers.insert(numbers.end(), {{"kid", kid.mean}, {"kid_deviation", kid.std}});
    constexpr int64_t kNearest = 3;
    if (std::min(fake.size(0), real.size(0)) > kNearest) {
      const auto shares =
          precision_recall(real.slice(0, 0, kNeighbours), fake.slice(0, 0, kNeighbours), kNearest);
      numbers.insert(numbers.end(), {{"precision", shares.precision}, {"recall", shares.recall}});
    }
  }
  show_numbers(numbers);
}

}  // namespace

void add_fid(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command = app.add_subcommand("fid", "How far two sets of images are apart");
  const char* meaning = "Images (`ddaebm data list` shows what can be read), or statistics, .npz";
  command->add_option("A", o->a, fmt::format("Generated. {}", meaning))->required();
  command->add_option("B", o->b, "Real. Likewise");
  command->add_option("--save", o->save, "Write A's statistics, .npz, also for pytorch-fid");
  command->add_option("-n", o->n, "The first so many images of each; 0: all")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000000}))
      ->capture_default_str();
  command->add_option("--size", o->size, "Scale to this side first, as data.size does")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_option("--split", o->split, "train or test, of sets that have both")
      ->check(CLI::IsMember({"train", "test"}))
      ->capture_default_str();
  command->add_flag("--jpeg", o->jpeg,
                    "Pass A's images through JPEG of quality 75, as programs do whose published\n"
                    "FIDs are of samples saved as .jpg");
  command->add_option("--inception", o->weights,
                      "Weights; default $DDAEBM_INCEPTION, else inception2015.safetensors in the\n"
                      "data folder, which `ddaebm import` makes, else "
                      "inception2015_to_mixed7.safetensors");
  command->add_option("--root", o->root,
                      "Folder of image sets; default $DDAEBM_DATA, else ~/.cache/ddaebm");
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "Prints fid, of 2048 features, or fid768 where the network's weights end at mixed_7, which "
      "is\n"
      "another measure. Of two sets of images also kid (mean and deviation of 100 subsets of "
      "1000),\n"
      "precision and recall (3 neighbours, the first 10,000 images). Fewer than 50,000 images a "
      "side\n"
      "read higher; statistics of other programs are taken to be of the same network.\n"
      "Examples:\n"
      "  ddaebm fid samples/ cifar10 --device cuda\n"
      "  ddaebm fid cifar10 --save cifar10.npz\n"
      "  ddaebm sample runs/cifar10 -n 50000 -o samples.npy && ddaebm fid samples.npy cifar10.npz");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
