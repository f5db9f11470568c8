#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/types.h>

#include "ddaebm/data/image_files.h"
#include "ddaebm/data/source.h"
#include "ddaebm/error.h"

namespace ddaebm {

enum class Split { train, test };

// Images in memory.
struct Images {
  torch::Tensor pixels;  // uint8 [N, C, H, W] on the CPU
  torch::Tensor labels;  // int64 [N], or undefined
};

// A set that is opened but not yet framed (cropped and scaled): either its pixels, or pictures
// still to be decoded.
struct ImageSet {
  Images stored;
  std::shared_ptr<const ImageFiles> files;

  int64_t size() const { return files ? files->size() : stored.pixels.size(0); }
};

// Whether the name is an image set of the catalogue, or the path one that open_images reads.
bool is_image_data(const std::string& name);

// Opens config.name: a set of the catalogue, or a path: a folder of pictures (with those of the
// folders in it), of an LMDB, of tar shards, of MNIST's or CIFAR's official files; or one file in
// IDX, CIFAR binary, .tar, .tar.gz or .npy. Nothing where the set has no such split: a path has a
// test split only where its files are named as the official ones.
std::optional<ImageSet> open_images(const DataConfig& config, Split split, const ReadHooks& hooks);

// The tar files of a path, sorted: itself, or those of a folder.
std::vector<std::filesystem::path> tar_shards(const std::string& name);

// Those of the set's images that `which` lists, cropped and scaled as config.crop and config.size
// say, decoded on all cores. A picture that does not decode is named in a warning and left out;
// more than one in a hundred is an error, and so are pictures of different size.
Images load_images(const ImageSet& set, const std::vector<int64_t>& which, const DataConfig& config,
                   const ReadHooks& hooks);

// All of a split, the training split up to config.limit; an Error where the set has no such split.
Images read_images(const DataConfig& config, Split split, const ReadHooks& hooks = {});

// One picture, decoded and framed: uint8 [3, H, W]. An Error without the picture's name.
torch::Tensor load_picture(const ImageFiles& files, int64_t i, const DataConfig& config);

// The same of a picture's bytes.
torch::Tensor load_picture(std::string_view bytes, const DataConfig& config);

// A picture that is sound but not of the size that the settings need.
class WrongSize : public Error {
 public:
  using Error::Error;
};

// Bytes to the model's range, [-1, 1], and back.
torch::Tensor scaled(const torch::Tensor& pixels);
torch::Tensor to_bytes(const torch::Tensor& images);

// The indices 0..n-1, at most `limit` of them (0: all).
std::vector<int64_t> first_indices(int64_t n, int64_t limit = 0);

// Three of `digits` digits for each of n stacks, int64 [n, 3]; the same at each call.
torch::Tensor stack_table(int64_t n, int64_t digits, Split split);
// Stacks of digits [N, 1, 28, 28] as table [n, 3] says: [n, 3, 32, 32], with a border of zeros.
torch::Tensor stack_digits(const torch::Tensor& digits, const torch::Tensor& table);

}  // namespace ddaebm
