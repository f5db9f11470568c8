#include "ddaebm/data/catalogue.h"

#include <algorithm>
#include <cstdlib>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

std::vector<ImageSetEntry> make_catalogue() {
  const std::string mnist = "https://ossci-datasets.s3.amazonaws.com/mnist/";
  const std::string cifar = "https://www.cs.toronto.edu/~kriz/";
  const std::string lsun = "http://dl.yf.io/lsun/scenes/";
  const std::vector<RemoteFile> mnist_files = {
      {"train-images-idx3-ubyte.gz", mnist, "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422},
      {"train-labels-idx1-ubyte.gz", mnist, "d53e105ee54ea40749a09fcbcd1e9432", 28881},
      {"t10k-images-idx3-ubyte.gz", mnist, "9fb629c4189551a2d022fa330f9573f3", 1648877},
      {"t10k-labels-idx1-ubyte.gz", mnist, "ec29112dd5afa0611ce80d1b7f02629c", 4542}};
  return {
      {.name = "mnist",
       .description = "70,000 handwritten digits, 28 x 28 grey",
       .folders = {"mnist", "MNIST/raw"},
       .train = 60000,
       .test = 10000,
       .files = mnist_files,
       .by_hand = ""},
      {.name = "stackedmnist",
       .description = "three digits of mnist as red, green and blue, 32 x 32: 1000 modes",
       .folders = {"mnist", "MNIST/raw"},
       .train = 60000,
       .test = 10000,
       .files = mnist_files,
       .by_hand = ""},
      {.name = "cifar10",
       .description = "60,000 photographs of 10 kinds, 32 x 32",
       .folders = {"cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"},
       .train = 50000,
       .test = 10000,
       .files = {{"cifar-10-binary.tar.gz", cifar, "c32a1d4ab5d03f1284b67883e8d87530", 170052171}},
       .by_hand = ""},
      {.name = "cifar100",
       .description = "60,000 photographs of 100 kinds, 32 x 32",
       .folders = {"cifar100", "cifar-100-binary", "cifar-100-python"},
       .train = 50000,
       .test = 10000,
       .files = {{"cifar-100-binary.tar.gz", cifar, "03b5dce01913d631647c71ecec9e9cb8", 168513733}},
       .by_hand = ""},
      {.name = "celeba",
       .description = "202,599 faces, aligned, 178 x 218 (use crop 15, 40, 163, 188)",
       .folders = {"celeba"},
       .files = {{"img_align_celeba.zip", "", "00d2c5bc6d35e252742224ab0c1e8fcb", 0},
                 {"list_eval_partition.txt", "", "d32c9cbf5e040fd4025c592c306e6668", 0}},
       .by_hand = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, 'Align&Cropped Images' and "
                  "'Train/Val/Test Partitions'"},
      {.name = "lsun-church",
       .description = "126,227 churches and 300 for testing, shorter side 256",
       .folders = {"lsun-church", "lsun", "church_outdoor_train_lmdb"},
       .files = {{"church_outdoor_train_lmdb.zip", lsun,
                  "91128ae026840ac0c5982b4445ab5fc4e092d6847cca76793b2b1a0815c2e74a", 2448463466},
                 {"church_outdoor_val_lmdb.zip", lsun,
                  "34635b7547a3e51a15f942a4a4082dd6bc9cca381a953515cb2275c0eed50584", 5957308}},
       .by_hand = ""},
  };
}

}  // namespace

const std::vector<ImageSetEntry>& image_catalogue() {
  static const std::vector<ImageSetEntry> catalogue = make_catalogue();
  return catalogue;
}

const ImageSetEntry* find_image_set(const std::string& name) {
  const auto& all = image_catalogue();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.name == name; });
  return found == all.end() ? nullptr : &*found;
}

std::filesystem::path data_root(const std::string& setting) {
  if (!setting.empty()) return setting;
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string root = variable("DDAEBM_DATA"); !root.empty()) return root;
  const std::string home = variable("HOME");
  if (home.empty()) fail("no folder for data: set data.root or the variable DDAEBM_DATA");
  return std::filesystem::path(home) / ".cache" / "ddaebm";
}

std::optional<std::filesystem::path> locate(const ImageSetEntry& entry,
                                            const std::filesystem::path& root) {
  for (const auto& folder : entry.folders) {
    if (std::filesystem::is_directory(root / folder)) return root / folder;
  }
  return {};
}

}  // namespace ddaebm
