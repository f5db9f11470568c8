#include "ddaebm/train/image_evaluation.h"

#include <algorithm>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/images.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/plot.h"
#include "ddaebm/metrics/digits.h"
#include "ddaebm/metrics/fid.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/metrics/inception_score.h"
#include "ddaebm/train/progress.h"

namespace ddaebm {
namespace {

constexpr int64_t kScored = 1000;      // images whose mean score is shown
constexpr int64_t kReference = 50000;  // training images that FID compares with
constexpr int64_t kFeatureBatch = 1000;
constexpr int64_t kClasses = 1000;  // of the 1008 logits, as TensorFlow's evaluators have it
constexpr int64_t kParts = 10;
constexpr int64_t kGrid = 8;  // columns and rows of a picture

// `see` gets the features of each batch.
FeatureStatistics statistics_of(const Inception& network, const torch::Tensor& images,
                                const std::string& source,
                                const std::function<void(const torch::Tensor&)>& see = nullptr) {
  const auto progress = late_progress("Inception features");
  Moments moments;
  for (const auto& part : images.split(kFeatureBatch)) {
    const auto features = network.features(part);
    moments.add(features);
    if (see) see(features);
    progress(moments.count(), images.size(0));
  }
  return moments.statistics(network.settings(), source);
}

// The training images' statistics, from the cache where it holds those of the same network and set.
FeatureStatistics reference(const Inception& network, DataSource& source, const DataConfig& data,
                            const std::filesystem::path& cache) {
  const std::string what = fmt::format("{} size {} crop {} limit {} stacks {} {}, first {}",
                                       data.name, data.size, fmt::join(data.crop, ","), data.limit,
                                       data.stacks, source.fingerprint(), kReference);
  const auto file = cache / (fid_name(network.width()) + kReferenceStatistics);
  if (!cache.empty() && std::filesystem::exists(file)) {
    auto kept = read_statistics(file);
    if (kept.settings == network.settings() && kept.source == what) return kept;
  }
  auto made = statistics_of(network, source.training_images(kReference), what);
  if (!cache.empty()) write_statistics(file, made);
  return made;
}

// Trained once and kept beside the data.
DigitClassifier digit_classifier(const DataConfig& data, torch::Device device) {
  const auto file = data_root(data.root) / "digit_classifier.safetensors";
  if (std::filesystem::exists(file)) return DigitClassifier::load(file, device);
  DataConfig mnist = data;
  mnist.name = "mnist";
  mnist.limit = mnist.size = 0;
  const auto digits = [&](Split split) {
    const Images images = read_images(mnist, split);
    return DigitSet{images.pixels, images.labels};
  };
  std::unique_ptr<Progress> bar;
  auto made =
      train_digit_classifier(digits(Split::train), digits(Split::test), device, {},
                             [&](int64_t done, int64_t total, double loss) {
                               if (!bar)
                                 bar = std::make_unique<Progress>("digit classifier", total, 0);
                               bar->update(done, fmt::format("loss {:.3g}", loss));
                             });
  made.save(file);
  return made;
}

}  // namespace

Evaluation evaluate_images(Model& model, DataSource& source, const DataConfig& data,
                           const EvaluationOptions& options) {
  Random random(torch::kCPU, options.seed);
  random.restart(Random::kEvaluation, 0);
  const auto real =
      source.draw_held_out(std::min(options.samples, kScored), random).to(torch::kCPU);
  const auto generated = model.sample(options.samples, options.seed);
  const auto bytes = to_bytes(generated);

  Evaluation out;
  const auto real_scores = model.log_density(real);
  const auto sample_scores = model.log_density(generated.slice(0, 0, kScored));
  out.numbers.emplace_back("held_out_score", real_scores.mean().item<double>());
  out.numbers.emplace_back("sample_score", sample_scores.mean().item<double>());
  out.scores = {{"held_out", numbers_of(real_scores)}, {"samples", numbers_of(sample_scores)}};
  if (const auto weights = find_inception(); weights && generated.size(1) == 3) {
    const Inception network(*weights, torch::TensorOptions(torch::kFloat).device(options.device));
    std::vector<torch::Tensor> logits;
    const auto generated_statistics =
        statistics_of(network, bytes, "samples", [&](const torch::Tensor& features) {
          if (network.has_logits())
            logits.push_back(network.logits(features).narrow(1, 0, kClasses));
        });
    out.numbers.emplace_back(
        fid_name(network.width()),
        frechet_distance(generated_statistics, reference(network, source, data, options.cache)));
    if (!logits.empty()) {
      const auto all = torch::cat(logits);
      out.numbers.emplace_back("inception_score", inception_score(all, 1).mean);
      if (all.size(0) >= kParts) {
        const auto parts = inception_score(all, kParts);
        out.numbers.emplace_back("inception_score_10", parts.mean);
        out.numbers.emplace_back("inception_score_10_deviation", parts.std);
      }
    }
  }
  if (data.name == "stackedmnist") {
    const auto classifier = digit_classifier(data, options.device);
    const auto count = count_stacked_modes(classifier, bytes);
    out.numbers.emplace_back("classifier_accuracy", classifier.test_accuracy());
    out.numbers.emplace_back("modes", static_cast<double>(count.modes));
    out.numbers.emplace_back("modes_kl", count.kl);
  }
  const auto shown =
      real.size(0) < kGrid * kGrid ? source.training_images(kGrid * kGrid) : to_bytes(real);
  // As many of both, so that they are of one height.
  const int64_t count = std::min({kGrid * kGrid, shown.size(0), bytes.size(0)});
  const auto grid = [&](const torch::Tensor& images) {
    return image_grid(images.slice(0, 0, count), kGrid);
  };
  out.picture = beside({grid(bytes), grid(shown)});
  out.picture_name = "samples.png";
  return out;
}

}  // namespace ddaebm
