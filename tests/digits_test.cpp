#include "ddaebm/metrics/digits.h"

#include <cmath>
#include <string>

#include "temp_dir.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

// Ten figures of 4x4 pixel blocks, shifted and noisy.
DigitSet figures(int64_t n, uint64_t seed) {
  torch::manual_seed(99);
  const auto shapes = (torch::rand({10, 7, 7}) > 0.6).to(torch::kFloat);
  torch::manual_seed(seed);
  const auto labels = torch::arange(n).remainder(10);
  auto pixels = torch::zeros({n, 1, 28, 28});
  for (int64_t i = 0; i < n; ++i) {
    const auto block = shapes[i % 10].repeat_interleave(4, 0).repeat_interleave(4, 1);
    const auto shift = torch::randint(-2, 3, {2});
    pixels[i][0] = block.roll({shift[0].item<int64_t>(), shift[1].item<int64_t>()}, {0, 1});
  }
  pixels = (pixels * 200 + torch::rand(pixels.sizes()) * 55).to(torch::kByte);
  return {pixels, labels};
}

TEST(DigitClassifier, LearnsSavesAndLoads) {
  const auto training = figures(200, 1);
  const auto test = figures(100, 2);
  int64_t calls = 0;
  int64_t total = 0;
  double first_loss = 0;
  double last_loss = 0;
  const DigitTrainingConfig config{.epochs = 8, .batch = 20, .lr = 1e-3, .seed = 3};
  const auto classifier = train_digit_classifier(training, test, torch::kCPU, config,
                                                 [&](int64_t done, int64_t all, double loss) {
                                                   EXPECT_EQ(done, ++calls);
                                                   total = all;
                                                   if (done == 1) first_loss = loss;
                                                   last_loss = loss;
                                                 });
  EXPECT_EQ(calls, 80);
  EXPECT_EQ(total, 80);
  EXPECT_LT(last_loss, first_loss);
  EXPECT_EQ(classifier.test_accuracy(), 1);
  const auto pixels = training.pixels.to(torch::kFloat) / 255;
  EXPECT_TRUE(classifier.labels(pixels).equal(training.labels));
  EXPECT_EQ(classifier.labels(pixels.narrow(0, 0, 0)).size(0), 0);

  const TempDir folder;
  const auto path = folder.path() / "digits.safetensors";
  classifier.save(path);
  const auto loaded = DigitClassifier::load(path, torch::kCPU);
  EXPECT_EQ(loaded.test_accuracy(), 1);
  const auto noise = torch::rand({50, 1, 28, 28});
  EXPECT_TRUE(loaded.labels(noise).equal(classifier.labels(noise)));

  const auto refusal = [&](const std::function<void(Safetensors&)>& damage) {
    auto file = read_safetensors(path);
    damage(file);
    const auto damaged = folder.path() / "damaged.safetensors";
    write_safetensors(damaged, file);
    try {
      DigitClassifier::load(damaged, torch::kCPU);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal([](auto& file) { file.metadata.erase("kind"); }), "kind \"\"");
  expect(refusal([](auto& file) { file.metadata["test_accuracy"] = "0.9x"; }), "\"0.9x\"");
  expect(refusal([](auto& file) { file.metadata["test_accuracy"] = "2"; }), "0 to 1");
  expect(refusal([](auto& file) { file.tensors.erase("hidden.bias"); }), "no tensor 'hidden.bias'");
  expect(refusal([](auto& file) { file.tensors["conv1.bias"] = torch::zeros({31}); }), "[31]");
  expect(refusal([](auto& file) { file.tensors["conv1.bias"] /= 0; }), "finite");
  expect(refusal([](auto& file) { file.tensors["more"] = torch::zeros({1}); }), "9 tensors");

  // The images of three figures in one are read as that; the padding is not looked at.
  const auto stack = torch::full({60, 3, 32, 32}, 77, torch::kByte);
  stack.slice(2, 2, 30).slice(3, 2, 30).copy_(
      training.pixels.narrow(0, 0, 180).view({60, 3, 28, 28}));
  const auto truth = count_modes(training.labels.narrow(0, 0, 180).view({60, 3}));
  EXPECT_EQ(truth.modes, 10);
  for (const auto& images : {stack, stack.to(torch::kFloat) / 127.5 - 1}) {
    const auto found = count_stacked_modes(loaded, images);
    EXPECT_EQ(found.modes, truth.modes);
    EXPECT_EQ(found.kl, truth.kl);
  }
}

TEST(DigitClassifier, RefusesLabelsThatDoNotFit) {
  const auto set = figures(20, 1);
  const DigitSet few{set.pixels, set.labels.narrow(0, 0, 19)};
  const DigitSet beyond{set.pixels, set.labels + 1};
  const DigitSet none{set.pixels.narrow(0, 0, 0), set.labels.narrow(0, 0, 0)};
  for (const auto& bad : {few, beyond, none}) {
    EXPECT_THROW(train_digit_classifier(bad, set, torch::kCPU), Error);
    EXPECT_THROW(train_digit_classifier(set, bad, torch::kCPU), Error);
  }
}

// A digit is told by its first pixel; half of what [0, 1] allows is 5.
torch::Tensor first_pixel(const torch::Tensor& pixels) {
  EXPECT_GE(pixels.min().item<float>(), 0);
  EXPECT_LE(pixels.max().item<float>(), 1);
  return (pixels.select(3, 0).select(2, 0).select(1, 0) * 10).floor().clamp_max(9).to(torch::kLong);
}

TEST(StackedModes, AreCountedByTheProtocol) {
  // 600 images, 3 modes: 400 of 012, 150 of 999, 50 of 500.
  auto images = torch::zeros({600, 3, 32, 32}, torch::kByte);
  const auto set = [&](int64_t first, int64_t n, std::vector<int> digits) {
    for (size_t c = 0; c < 3; ++c) {
      images.narrow(0, first, n).select(1, static_cast<int64_t>(c)).fill_(digits[c] * 25 + 13);
    }
  };
  set(0, 400, {0, 1, 2});
  set(400, 150, {9, 9, 9});
  set(550, 50, {5, 0, 0});
  const double expected = 400.0 / 600 * std::log(1000 * 400.0 / 600) +
                          150.0 / 600 * std::log(1000 * 150.0 / 600) +
                          50.0 / 600 * std::log(1000 * 50.0 / 600);
  for (const auto& form :
       {images, images.to(torch::kFloat) / 127.5 - 1, images.to(torch::kDouble) / 127.5 - 1}) {
    const auto found = count_stacked_modes(first_pixel, form);
    EXPECT_EQ(found.samples, 600);
    EXPECT_EQ(found.modes, 3);
    EXPECT_NEAR(found.kl, expected, 1e-12);
  }
  // A generator's overshoot is clamped.
  EXPECT_EQ(count_stacked_modes(first_pixel, torch::full({2, 3, 32, 32}, 1.5)).modes, 1);
}

TEST(StackedModes, OfAllModesAlikeHaveNoDivergence) {
  const auto mode = torch::arange(3000).remainder(1000);
  const auto digits = torch::stack(
      {mode.div(100, "floor"), mode.div(10, "floor").remainder(10), mode.remainder(10)}, 1);
  auto found = count_modes(digits);
  EXPECT_EQ(found.modes, 1000);
  EXPECT_NEAR(found.kl, 0, 1e-14);
  found = count_modes(digits.narrow(0, 0, 500));
  EXPECT_EQ(found.modes, 500);
  EXPECT_NEAR(found.kl, std::log(2), 1e-14);
  EXPECT_NEAR(count_modes(torch::full({7, 3}, 4)).kl, std::log(1000), 1e-14);
  // What is stacked in another order is another mode.
  EXPECT_EQ(count_modes(torch::tensor({1, 2, 3, 3, 2, 1, 2, 1, 3}).view({3, 3})).modes, 3);
}

TEST(StackedModes, RefuseNoImagesAndNotFinite) {
  EXPECT_THROW(count_stacked_modes(first_pixel, torch::zeros({0, 3, 32, 32})), Error);
  EXPECT_THROW(count_stacked_modes(first_pixel, torch::full({2, 3, 32, 32}, NAN)), Error);
  EXPECT_THROW(count_stacked_modes(first_pixel, torch::zeros({2, 3, 28, 28})), c10::Error);
  EXPECT_THROW(count_stacked_modes(first_pixel, torch::zeros({2, 3, 32, 32}, torch::kLong)),
               c10::Error);
}

}  // namespace
}  // namespace ddaebm
