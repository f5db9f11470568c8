#pragma once

#include <memory>

#include "ddaebm/data/images.h"
#include "ddaebm/data/source.h"

namespace ddaebm {

// Images to train on, float32 [n, C, H, W] in [-1, 1]. A set that fits into config.device_memory is
// held on the device as bytes, and drawing is done there; a larger one is read from disk, batch by
// batch, by threads that run ahead of the training (DataSource::prepare). Evaluation draws from the
// test split, or from a share of the images that the set's content alone picks.
std::unique_ptr<DataSource> open_image_source(const DataConfig& config, torch::Device device,
                                              const ReadHooks& hooks, uint64_t seed, Share share);

}  // namespace ddaebm
