#include "ddaebm/data/logit_source.h"

#include <algorithm>

#include "ddaebm/data/images.h"
#include "ddaebm/error.h"

namespace ddaebm {

using torch::Tensor;

Tensor to_logits(const Tensor& levels, const Tensor& u) {
  constexpr double kEdge = 1e-3;
  const auto p = (levels.to(u.options()) / 255.0 + (u - 0.5) / 256.0).clamp(kEdge, 1 - kEdge);
  return p.log() - (1.0 - p).log();
}

namespace {

class LogitSource : public DataSource {
 public:
  LogitSource(const DataConfig& config, torch::Device device, const ReadHooks& hooks) {
    const Tensor images = read_images(config, Split::train, hooks).pixels;
    image_ = images.sizes().slice(1).vec();
    // Which images are kept depends on their number alone, so that runs compare.
    const int64_t n = images.size(0);
    Random random(torch::kCPU);
    const auto order = random.uniform({n}, torch::kDouble).argsort();
    const auto kept = static_cast<int64_t>(config.validation * static_cast<double>(n));
    if (n - kept < 2) {
      fail("{}: {} images to train on; two are needed at least", config.name, n - kept);
    }
    const auto rows = images.flatten(1).index_select(0, order);
    validation_ = rows.slice(0, 0, kept).clone();
    train_ = rows.slice(0, kept).to(device);
    test_ = read_images(config, Split::test, hooks).pixels.flatten(1);
    const int64_t d = rows.size(1);
    units_ = {torch::zeros({d}, torch::kDouble), torch::ones({d}, torch::kDouble)};
    if (config.standardise == Standardise::always) {
      const auto x = with_noise(rows.slice(0, kept), random);
      units_ = {x.mean(0), x.std(0, /*unbiased=*/false)};
    }
  }

  std::vector<int64_t> event() const override { return {train_.size(1)}; }
  Tensor draw(int64_t n, Random& random) override {
    return with_noise(train_.index_select(0, random.integers(train_.size(0), {n})), random);
  }
  Tensor draw_held_out(int64_t n, Random& random) override {
    return with_noise(test_.slice(0, 0, std::min(n, test_.size(0))), random);
  }
  Tensor draw_validation(int64_t n, Random& random) override {
    if (validation_.size(0) == 0) return {};
    return with_noise(validation_.slice(0, 0, std::min(n, validation_.size(0))), random);
  }
  Tensor to_images(const Tensor& x) const override {
    std::vector<int64_t> shape = {x.size(0)};
    shape.insert(shape.end(), image_.begin(), image_.end());
    return (x.sigmoid() * 255.0).round().to(torch::kUInt8).view(shape);
  }
  Units units() const override { return units_; }

 private:
  static Tensor with_noise(const Tensor& levels, Random& random) {
    return to_logits(levels, random.uniform(levels.sizes(), torch::kDouble));
  }
  Tensor train_, validation_, test_;  // uint8 [N, D]; the last two on the CPU
  std::vector<int64_t> image_;        // C, H, W
  Units units_;
};

}  // namespace

std::unique_ptr<DataSource> open_logit_source(const DataConfig& config, torch::Device device,
                                              const ReadHooks& hooks) {
  return std::make_unique<LogitSource>(config, device, hooks);
}

}  // namespace ddaebm
