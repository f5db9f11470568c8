#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/data/source.h"

namespace ddaebm::serve {

// Turns a request's body into data as the model takes them. Bodies are hostile: all that is not as
// expected is an Error.
class Inputs {
 public:
  // `event`: the shape of a datum; `data`: the settings that the model was trained with.
  Inputs(std::vector<int64_t> event, const DataConfig& data);

  // Rows float64 [N, ...], N >= 1, all finite; told apart by content:
  //   {"rows": [[...], ...]}    as many numbers a row as a datum has
  //   .npy                      [N, D], or for images [N, C, H, W], bytes or numbers in [-1, 1]
  //   PNG, JPEG, WebP           one image, framed as the training's were
  torch::Tensor parse(const std::string& body) const;

  // Shape [C, H, W] of the images that data stand for; empty where they do not.
  const std::vector<int64_t>& image() const { return image_; }
  // Data as images, uint8 [N, C, H, W].
  torch::Tensor to_images(const torch::Tensor& data) const;

 private:
  torch::Tensor from_pixels(torch::Tensor pixels) const;

  std::vector<int64_t> event_, image_;
  DataConfig data_;
  int64_t numbers_ = 1;
};

}  // namespace ddaebm::serve
