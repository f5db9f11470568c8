#include "ddaebm/metrics/digits.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>

#include <torch/optim/adam.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/random.h"

namespace ddaebm {
namespace {

constexpr int64_t kSide = 28;
constexpr int64_t kEvaluationBatch = 500;
constexpr const char* kKind = "digit classifier";

struct Shape {
  const char* name;
  std::vector<int64_t> sizes;
};
const std::array<Shape, 8>& shapes() {
  static const std::array<Shape, 8> all = {{{"conv1.weight", {32, 1, 3, 3}},
                                            {"conv1.bias", {32}},
                                            {"conv2.weight", {64, 32, 3, 3}},
                                            {"conv2.bias", {64}},
                                            {"hidden.weight", {128, int64_t{64} * 12 * 12}},
                                            {"hidden.bias", {128}},
                                            {"output.weight", {10, 128}},
                                            {"output.bias", {10}}}};
  return all;
}

torch::Tensor in_unit_range(const torch::Tensor& bytes) { return bytes.to(torch::kFloat) / 255; }

// On the device, labels as int64.
DigitSet checked(const DigitSet& set, const char* name, torch::Device device) {
  TORCH_CHECK(set.pixels.dim() == 4 && set.pixels.size(1) == 1 && set.pixels.size(2) == kSide &&
                  set.pixels.size(3) == kSide && set.pixels.scalar_type() == torch::kByte,
              name, " digits are ", set.pixels.scalar_type(), " ", set.pixels.sizes(),
              ", uint8 [N, 1, 28, 28] is wanted");
  if (set.labels.dim() != 1 || set.labels.size(0) != set.pixels.size(0) ||
      set.pixels.size(0) == 0) {
    fail("{} {} digits and labels [{}]; each digit needs one label, and one digit at least", name,
         set.pixels.size(0), fmt::join(set.labels.sizes(), ", "));
  }
  const auto labels = set.labels.to(device, torch::kLong);
  const auto least = labels.min().item<int64_t>();
  const auto most = labels.max().item<int64_t>();
  if (least < 0 || most > 9) {
    fail("{} labels lie between {} and {}; digits are 0 to 9", name, least, most);
  }
  return {set.pixels.to(device), labels};
}

}  // namespace

torch::Tensor DigitClassifier::logits(const torch::Tensor& pixels, bool training) const {
  const auto& p = parameters_;
  auto x = torch::conv2d(pixels, p[0], p[1]).relu();
  x = torch::max_pool2d(torch::conv2d(x, p[2], p[3]), 2).relu();  // as ReLU first, on a quarter
  x = torch::dropout(x, 0.25, training).flatten(1);
  x = torch::dropout(torch::linear(x, p[4], p[5]).relu(), 0.5, training);
  return torch::linear(x, p[6], p[7]);
}

torch::Tensor DigitClassifier::labels(const torch::Tensor& pixels) const {
  TORCH_CHECK(pixels.dim() == 4 && pixels.size(1) == 1 && pixels.size(2) == kSide &&
                  pixels.size(3) == kSide && pixels.scalar_type() == torch::kFloat,
              "digits are ", pixels.scalar_type(), " ", pixels.sizes(),
              ", float32 [N, 1, 28, 28] is wanted");
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts = {torch::empty({0}, torch::kLong)};
  for (int64_t first = 0; first < pixels.size(0); first += kEvaluationBatch) {
    const auto part = pixels.narrow(0, first, std::min(kEvaluationBatch, pixels.size(0) - first));
    parts.push_back(logits(part.to(parameters_[0].device()), false).argmax(1).cpu());
  }
  return torch::cat(parts);
}

void DigitClassifier::save(const std::filesystem::path& path) const {
  Safetensors file;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    file.tensors[shapes()[i].name] = parameters_[i].detach();
  }
  file.metadata = {
      {"kind", kKind}, {"input", "[0, 1]"}, {"test_accuracy", fmt::format("{}", test_accuracy_)}};
  write_safetensors(path, file);
}

DigitClassifier DigitClassifier::load(const std::filesystem::path& path, torch::Device device) {
  const Safetensors file = read_safetensors(path);
  const std::string where = path.string();
  const auto text = [&](const char* key) {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? std::string() : found->second;
  };
  if (text("kind") != kKind) {
    fail("{}: kind {}, wanted {}; train one anew", where, excerpt(text("kind")), excerpt(kKind));
  }
  DigitClassifier classifier;
  const std::string accuracy = text("test_accuracy");
  const auto [end, code] = std::from_chars(accuracy.data(), accuracy.data() + accuracy.size(),
                                           classifier.test_accuracy_);
  if (code != std::errc() || end != accuracy.data() + accuracy.size() ||
      !(classifier.test_accuracy_ >= 0 && classifier.test_accuracy_ <= 1)) {
    fail("{}: test_accuracy {}, wanted a number from 0 to 1; train one anew", where,
         excerpt(accuracy));
  }
  for (const auto& [name, sizes] : shapes()) {
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end()) fail("{}: there is no tensor '{}'", where, name);
    const auto& tensor = found->second;
    if (tensor.sizes() != at::IntArrayRef(sizes) || tensor.scalar_type() != torch::kFloat ||
        !tensor.isfinite().all().item<bool>()) {
      fail("{}: tensor '{}' is {} [{}]; finite float32 [{}] is wanted", where, name,
           c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
           fmt::join(sizes, ", "));
    }
    classifier.parameters_.push_back(tensor.to(device));
  }
  if (file.tensors.size() != shapes().size()) {
    fail("{}: {} tensors, the classifier has {}", where, file.tensors.size(), shapes().size());
  }
  return classifier;
}

class DigitTraining {
 public:
  DigitTraining(const DigitTrainingConfig& config, torch::Device device)
      : config_(config), random_(device, config.seed) {
    const auto options = torch::TensorOptions(torch::kFloat).device(device);
    double bound = 0;
    for (const auto& shape : shapes()) {
      // Uniform within one over the root of a unit's inputs, weights and biases alike.
      if (shape.sizes.size() > 1) {
        int64_t inputs = 1;
        for (size_t i = 1; i < shape.sizes.size(); ++i) inputs *= shape.sizes[i];
        bound = 1 / std::sqrt(static_cast<double>(inputs));
      }
      classifier_.parameters_.push_back(
          ((2 * random_.uniform(shape.sizes, options) - 1) * bound).requires_grad_());
    }
  }

  DigitClassifier run(const DigitSet& training, const DigitSet& test,
                      const DigitProgress& progress) {
    random_.restart(Random::kTraining, 0);
    torch::optim::Adam adam(classifier_.parameters_, torch::optim::AdamOptions(config_.lr));
    const int64_t n = training.pixels.size(0);
    const int64_t per_epoch = (n + config_.batch - 1) / config_.batch;
    const int64_t total = per_epoch * config_.epochs;
    int64_t done = 0;
    for (int64_t epoch = 0; epoch < config_.epochs; ++epoch) {
      const auto order = torch::randperm(n, training.labels.options());
      for (const auto& rows : order.split(config_.batch)) {
        const double turn =
            std::numbers::pi * static_cast<double>(done) / static_cast<double>(total);
        static_cast<torch::optim::AdamOptions&>(adam.param_groups()[0].options())
            .lr(config_.lr * (1 + std::cos(turn)) / 2);
        const auto pixels = shifted(in_unit_range(training.pixels.index_select(0, rows)));
        const auto loss = torch::cross_entropy_loss(classifier_.logits(pixels, true),
                                                    training.labels.index_select(0, rows));
        adam.zero_grad();
        loss.backward();
        adam.step();
        ++done;
        if (progress) progress(done, total, loss.item<double>());
      }
    }
    for (auto& parameter : classifier_.parameters_) parameter = parameter.detach();
    classifier_.test_accuracy_ = accuracy(test);
    return std::move(classifier_);
  }

 private:
  // Up to 2 pixels along each axis, the whole batch alike: a generator does not centre its digits
  // as MNIST does.
  torch::Tensor shifted(const torch::Tensor& pixels) {
    constexpr int64_t kMost = 2;
    const auto offset = random_.integers(2 * kMost + 1, {2}).cpu();
    return torch::constant_pad_nd(pixels, {kMost, kMost, kMost, kMost})
        .narrow(2, offset[0].item<int64_t>(), kSide)
        .narrow(3, offset[1].item<int64_t>(), kSide)
        .contiguous();
  }

  double accuracy(const DigitSet& test) const {
    int64_t right = 0;
    for (int64_t first = 0; first < test.pixels.size(0); first += kEvaluationBatch) {
      const int64_t size = std::min(kEvaluationBatch, test.pixels.size(0) - first);
      const auto read = classifier_.labels(in_unit_range(test.pixels.narrow(0, first, size)));
      right += (read == test.labels.narrow(0, first, size).cpu()).sum().item<int64_t>();
    }
    return static_cast<double>(right) / static_cast<double>(test.pixels.size(0));
  }

  DigitTrainingConfig config_;
  Random random_;
  DigitClassifier classifier_;
};

DigitClassifier train_digit_classifier(const DigitSet& training, const DigitSet& test,
                                       torch::Device device, const DigitTrainingConfig& config,
                                       const DigitProgress& progress) {
  TORCH_CHECK(config.epochs > 0 && config.batch > 0 && config.lr > 0, "training for ",
              config.epochs, " epochs in batches of ", config.batch, " with lr ", config.lr);
  const auto first = checked(training, "training", device);
  const auto second = checked(test, "test", device);
  return DigitTraining(config, device).run(first, second, progress);
}

ModeCount count_modes(const torch::Tensor& digits) {
  TORCH_CHECK(digits.dim() == 2 && digits.size(1) == 3, "modes of digits ", digits.sizes(),
              ", [N, 3] is wanted");
  constexpr int64_t kModes = 1000;
  const int64_t n = digits.size(0);
  if (n == 0) fail("modes of no images; one at least is needed");
  const auto columns = digits.to(torch::kCPU, torch::kLong);
  TORCH_CHECK(((columns >= 0) & (columns <= 9)).all().item<bool>(), "digits beyond 0 to 9");
  const auto mode = columns.select(1, 0) * 100 + columns.select(1, 1) * 10 + columns.select(1, 2);
  const auto counts = torch::bincount(mode, {}, kModes);
  const auto p = counts.to(torch::kDouble) / n;
  return {n, (counts > 0).sum().item<int64_t>(), torch::xlogy(p, p * kModes).sum().item<double>()};
}

ModeCount count_stacked_modes(const DigitReader& reader, const torch::Tensor& images) {
  constexpr int64_t kPadded = 32;
  constexpr int64_t kMargin = (kPadded - kSide) / 2;
  const bool bytes = images.scalar_type() == torch::kByte;
  TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 && images.size(2) == kPadded &&
                  images.size(3) == kPadded && (bytes || images.is_floating_point()),
              "stacked digits are ", images.scalar_type(), " ", images.sizes(),
              ", uint8 or float [N, 3, 32, 32] is wanted");
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> digits = {torch::empty({0, 3}, torch::kLong)};
  for (int64_t first = 0; first < images.size(0); first += kEvaluationBatch) {
    const auto part = images.narrow(0, first, std::min(kEvaluationBatch, images.size(0) - first))
                          .slice(2, kMargin, kMargin + kSide)
                          .slice(3, kMargin, kMargin + kSide);
    if (!bytes && !part.isfinite().all().item<bool>()) {
      fail("images {} to {} hold numbers that are not finite; has the training diverged?", first,
           first + part.size(0) - 1);
    }
    const auto pixels =
        bytes ? in_unit_range(part) : ((part.to(torch::kFloat) + 1) / 2).clamp(0, 1);
    const auto read = reader(pixels.reshape({-1, 1, kSide, kSide}));
    TORCH_CHECK(read.dim() == 1 && read.size(0) == 3 * part.size(0), "a reader gave ", read.sizes(),
                " for ", 3 * part.size(0), " digits");
    digits.push_back(read.to(torch::kCPU, torch::kLong).view({-1, 3}));
  }
  return count_modes(torch::cat(digits));
}

ModeCount count_stacked_modes(const DigitClassifier& classifier, const torch::Tensor& images) {
  return count_stacked_modes(
      DigitReader([&](const torch::Tensor& pixels) { return classifier.labels(pixels); }), images);
}

}  // namespace ddaebm
