#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include <torch/types.h>

namespace ddaebm {

// Mean and covariance of the features of a set of images, and how they were made.
struct FeatureStatistics {
  torch::Tensor mean;        // [D] float64 on the CPU
  torch::Tensor covariance;  // [D, D] likewise, divided by N - 1
  int64_t count = 0;         // N; 0 where the file does not say
  // How the features were made (Inception::settings); empty in files of other programs.
  std::map<std::string, std::string> settings;
  std::string source;  // the images, in words
};

// Moments of features that come in batches, in float64: each batch is centred on its own mean, then
// joined, so that no large sums are subtracted.
class Moments {
 public:
  // [N, D], any floating type and device; sums stay on the device of the first batch.
  void add(const torch::Tensor& features);
  // As if all of the other's features had been added here.
  void merge(const Moments& other);
  int64_t count() const { return count_; }
  // Two images at least.
  FeatureStatistics statistics(std::map<std::string, std::string> settings = {},
                               std::string source = "") const;

 private:
  void join(int64_t count, const torch::Tensor& mean, const torch::Tensor& scatter);

  int64_t count_ = 0;
  torch::Tensor mean_;     // [D]
  torch::Tensor scatter_;  // [D, D], sum of the centred outer products
};

// |m1 - m2|^2 + tr(S1 + S2 - 2 (S1^1/2 S2 S1^1/2)^1/2). Covariances may be singular. Statistics of
// different settings are an Error, unless one side does not say how it was made.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

// An .npz with `mu` and `sigma`, as pytorch-fid has it, and `made`, JSON text as bytes, with count,
// settings and source. Files without `made` are read too.
void write_statistics(const std::filesystem::path& path, const FeatureStatistics& statistics);
FeatureStatistics read_statistics(const std::filesystem::path& path);

// An Error, with `name` for the statistics, where they were made with other settings or from
// another source than wanted, or do not say.
void require_made_with(const FeatureStatistics& statistics,
                       const std::map<std::string, std::string>& settings,
                       const std::string& source, const std::string& name);

}  // namespace ddaebm
