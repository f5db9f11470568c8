#include "ddaebm/data/logit_source.h"

#include <atomic>
#include <map>

#include "image_fixtures.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/train/trainer.h"

namespace ddaebm {
namespace {

// MNIST's files with training digits of 4 x 4, whose levels are all five times their number.
class Logits : public ::testing::Test {
 protected:
  static constexpr int64_t kTrain = 40;
  static constexpr int64_t kTest = 6;
  void SetUp() override {
    write("train", kTrain, 0);
    write("t10k", kTest, 200);
    config_.name = folder_.path().string();
    config_.logit = true;
  }
  void write(const std::string& part, int64_t n, int64_t base) const {
    const auto labels = torch::arange(n).to(torch::kUInt8);
    put_file(folder_.path() / (part + "-labels-idx1-ubyte"), idx_of(labels));
    put_file(folder_.path() / (part + "-images-idx3-ubyte"),
             idx_of((labels * 5 + base).view({-1, 1, 1}).expand({n, 4, 4}).contiguous()));
  }
  std::unique_ptr<DataSource> open() const { return open_data(config_, torch::kCPU); }

  TempDir folder_;
  DataConfig config_;
};

TEST(ToLogits, AddsLessThanAGreyLevelAndKeepsOffTheEnds) {
  const auto levels = torch::tensor({0, 0, 128, 255, 255}, torch::kUInt8);
  const auto u = torch::tensor({0.0, 0.99, 0.75, 0.5, 1.0}, torch::kDouble);
  const auto p = to_logits(levels, u).sigmoid();
  const auto wanted = torch::tensor(
      {1e-3, 0.49 / 256, 128.0 / 255 + 0.25 / 256, 1 - 1e-3, 1 - 1e-3}, torch::kDouble);
  EXPECT_LT((p - wanted).abs().max().item<double>(), 1e-12);
}

TEST_F(Logits, AreVectorsWithFreshNoiseFromTheirOwnParts) {
  const auto source = open();
  EXPECT_EQ(source->event(), std::vector<int64_t>{16});
  Random random(torch::kCPU);
  const auto levels = [&](const torch::Tensor& x) {
    return source->to_images(x).select(1, 0).select(1, 0).select(1, 0).to(torch::kLong);
  };
  const auto a = source->draw_held_out(100, random);
  const auto b = source->draw_held_out(100, random);
  ASSERT_EQ(a.sizes(), at::IntArrayRef({kTest, 16}));
  EXPECT_TRUE((a != b).any().item<bool>()) << "noise is drawn each time";
  // sigmoid and rounding may move a level by one.
  EXPECT_LE((levels(a) - torch::arange(200, 230, 5)).abs().max().item<int64_t>(), 1);

  const auto kept = levels(source->draw_validation(100, random));
  ASSERT_EQ(kept.size(0), 4) << "a tenth of 40";
  // As digits' numbers; a level that moved by one rounds back.
  const auto numbers = [](const torch::Tensor& x) { return (x + 2).div(5, "floor"); };
  const auto trained = numbers(levels(source->draw(4000, random)));
  for (int64_t i = 0; i < kTrain; ++i) {
    const bool is_kept = (numbers(kept) == i).any().item<bool>();
    EXPECT_EQ((trained == i).any().item<bool>(), !is_kept) << i;
  }
  EXPECT_EQ(source->to_images(a).sizes(), at::IntArrayRef({kTest, 1, 4, 4}));
}

TEST_F(Logits, StandardisedHaveUnitDeviation) {
  config_.standardise = Standardise::always;
  const auto source = open();
  Random random(torch::kCPU);
  const auto x = source->units().to_model(source->draw(4000, random));
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(x.std().item<double>(), 1, 0.05);
}

TEST_F(Logits, AFlowAsTheEnergyIsTrainedAndChosenByValidation) {
  auto file = ConfigFile::parse(R"(
[data]
logit = true
[net]
branch = [8, 6]
time_branch = [4, 5]
trunk = [9]
encoder_branch = [7]
encoder_trunk = [6, 5]
latent = 3
energy = "nice"
[net.nice]
hidden = [8]
[game]
fake_weight = 0.1
[train]
iterations = 6
batch = 8
evaluate_every = 3
evaluation_samples = 1000
)",
                                "nice.toml");
  file.set("data.name=\"" + folder_.path().string() + "\"");
  RunSettings settings(file);
  TempDir out;
  const std::atomic<int> stop{0};
  const auto result =
      train(settings, {out.path() / "run", torch::kCPU, /*resume=*/false, /*quiet=*/true}, stop);
  std::map<std::string, double> numbers(result.numbers.begin(), result.numbers.end());
  EXPECT_TRUE(numbers.count("held_out_score") == 1 && numbers.count("validation_score") == 1);
  const auto picture = read_png(out.path() / "run" / "samples.png");
  EXPECT_GT(picture.size(1), 2.5 * static_cast<double>(picture.size(0)))
      << "generated, exact and real images";
}

}  // namespace
}  // namespace ddaebm
