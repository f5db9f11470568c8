#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

#include "ddaebm/data/source.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/train/model.h"

namespace ddaebm {

// What a model is worth on its data.
struct Evaluation {
  // In the order in which they are shown. Known distributions: kl, js, hq and modes where it has
  // modes, mmd. Files: mmd and mean scores of held-out rows and of samples, and of validation rows
  // where there are such. Images: those scores,
  // fid, inception_score, and inception_score_10 (mean of ten parts) with its deviation where the
  // Inception network's weights are there, fid768 where they go to mixed_7 only; and for
  // StackedMNIST modes and modes_kl.
  std::vector<std::pair<std::string, double>> numbers;
  // Scores of data not trained on (`held_out`) and of samples (`samples`), some thousand of each.
  std::vector<NumberSet> scores;
  // Of 2-D data density beside data beside samples, of images samples beside data, with samples of
  // an exact density in between; else undefined.
  torch::Tensor picture;
  const char* picture_name = "density.png";
};

struct EvaluationOptions {
  uint64_t seed = 0;
  int64_t samples = 100000;
  torch::Device device = torch::kCPU;  // of the metrics' own networks
  // Where statistics of the training images are kept between evaluations; empty: nowhere.
  std::filesystem::path cache;
};

// kl: KL(data || softmax E) over 400 x 400 points of [-4, 4]^2. js: Jensen-Shannon divergence of
// `samples` generated points and the data on 100 x 100 cells. hq: share of points within four
// standard deviations of a mode.
Evaluation evaluate(Model& model, DataSource& source, const DataConfig& data,
                    const EvaluationOptions& options);

}  // namespace ddaebm
