// Images as training meets them: scaled, mirrored, held out, streamed.

#include "ddaebm/data/image_source.h"

#include <set>

#include "image_fixtures.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "ddaebm/error.h"
#include "ddaebm/io/npy.h"

namespace ddaebm {
namespace {

constexpr double kTiny = 1e-9;  // GiB: nothing fits, so sets are streamed

class ImageSourceTest : public ::testing::Test {
 protected:
  DataConfig config(const std::string& name) const {
    DataConfig c;
    c.name = (folder_.path() / name).string();
    return c;
  }
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }

  TempDir folder_;
};

torch::Tensor bytes_back(const torch::Tensor& x) {
  return ((x + 1) * 127.5).round().to(torch::kUInt8);
}

// Which picture(i, ...) each image of a batch is; -1: none, 1000 + i: mirrored.
std::vector<int64_t> numbers_in(const torch::Tensor& batch, int64_t pictures) {
  const auto pixels = bytes_back(batch.cpu());
  std::vector<int64_t> numbers;
  for (int64_t b = 0; b < pixels.size(0); ++b) {
    int64_t found = -1;
    for (int64_t i = 0; i < pictures && found < 0; ++i) {
      const auto candidate = picture(i, pixels.size(2), pixels.size(3));
      if (pixels[b].equal(candidate)) found = i;
      if (pixels[b].equal(candidate.flip(2))) found = 1000 + i;
    }
    numbers.push_back(found);
  }
  return numbers;
}

TEST_F(ImageSourceTest, ScalesBytesToMinusOneToOneExactly) {
  write_npy(path("all.npy"),
            torch::arange(256).to(torch::kUInt8).view({1, 1, 16, 16}).repeat({2, 1, 1, 1}));
  auto c = config("all.npy");
  c.held_out = 0;
  const auto source = open_data(c, torch::kCPU);
  EXPECT_EQ(source->event(), (std::vector<int64_t>{1, 16, 16}));
  Random random(torch::kCPU);
  const auto x = source->draw(1, random);
  ASSERT_EQ(x.scalar_type(), torch::kFloat);
  const auto wanted = torch::arange(256).to(torch::kFloat) / 127.5F - 1;
  EXPECT_TRUE(x.view(-1).equal(wanted));
  EXPECT_EQ(x.min().item<float>(), -1);
  EXPECT_EQ(x.max().item<float>(), 1);
  const Units units = source->units();
  EXPECT_TRUE(units.shift.equal(torch::zeros({1, 16, 16}, torch::kDouble)));
  EXPECT_TRUE(units.scale.equal(torch::ones({1, 16, 16}, torch::kDouble)));
}

TEST_F(ImageSourceTest, FlipsHalfOfTheImagesEachOnItsOwn) {
  write_folder(path("set"), numbered_pngs(10));
  auto c = config("set");
  c.flip = true;
  const auto source = open_data(c, torch::kCPU);
  Random random(torch::kCPU, 3);
  int64_t mirrored = 0;
  std::set<int64_t> seen;
  for (const int64_t number : numbers_in(source->draw(400, random), 10)) {
    ASSERT_GE(number, 0);
    mirrored += number >= 1000 ? 1 : 0;
    seen.insert(number % 1000);
  }
  EXPECT_NEAR(static_cast<double>(mirrored), 200, 50);  // five deviations
  EXPECT_EQ(seen.size(), 9U) << "all but the one held out";
  c.flip = false;
  for (const int64_t number : numbers_in(open_data(c, torch::kCPU)->draw(50, random), 10)) {
    EXPECT_LT(number, 1000);
  }
  // Evaluation sees images as they are.
  for (const int64_t number : numbers_in(source->draw_held_out(50, random), 10)) {
    EXPECT_LT(number, 1000);
  }
}

TEST_F(ImageSourceTest, HeldOutImagesAreNeverTrainedOn) {
  write_folder(path("set"), numbered_pngs(20));
  for (const double memory : {16.0, kTiny}) {
    auto c = config("set");
    c.held_out = 0.3;
    c.device_memory = memory;
    const auto source = open_data(c, torch::kCPU);
    Random random(torch::kCPU);
    source->prepare(0, 300);
    const auto trained = numbers_in(source->draw(300, random), 20);
    const auto held_out = numbers_in(source->draw_held_out(100, random), 20);
    const std::set<int64_t> train(trained.begin(), trained.end());
    const std::set<int64_t> held(held_out.begin(), held_out.end());
    EXPECT_EQ(held_out.size(), 6U);
    EXPECT_EQ(held.size(), 6U);
    EXPECT_EQ(train.size(), 14U);
    for (const int64_t number : held) EXPECT_FALSE(train.contains(number)) << number;
    // The same ones in another run, whatever its seed, and fewer where fewer are asked for.
    const auto again = open_data(c, torch::kCPU, {}, 99);
    EXPECT_EQ(numbers_in(again->draw_held_out(100, random), 20), held_out);
    EXPECT_EQ(again->draw_held_out(4, random).size(0), 4);
  }
}

TEST_F(ImageSourceTest, TestSplitIsUsedWhereThereIsOne) {
  write_lmdb(path("lsun/church_outdoor_train_lmdb"), numbered_pngs(5));
  write_lmdb(path("lsun/church_outdoor_val_lmdb"), {{"k", png_of(picture(17))}});
  auto c = config("lsun");
  c.limit = 3;
  const auto source = open_data(c, torch::kCPU);
  Random random(torch::kCPU);
  EXPECT_EQ(numbers_in(source->draw_held_out(10, random), 20), (std::vector<int64_t>{17}));
  const auto drawn = numbers_in(source->draw(200, random), 20);
  EXPECT_EQ(std::set<int64_t>(drawn.begin(), drawn.end()), (std::set<int64_t>{0, 1, 2}));
}

TEST_F(ImageSourceTest, StreamGivesWhatIsOnDisk) {
  const auto pngs = numbered_pngs(20);
  write_folder(path("folder"), pngs);
  write_lmdb(path("lmdb"), pngs);
  std::filesystem::create_directories(path("shards"));
  write_archive(path("shards/0.tar"), {pngs.begin(), pngs.begin() + 11});
  write_archive(path("shards/1.tar"), {pngs.begin() + 11, pngs.end()});
  torch::Tensor first;
  for (const char* name : {"folder", "lmdb", "shards"}) {
    SCOPED_TRACE(name);
    auto c = config(name);
    c.device_memory = kTiny;
    c.flip = true;
    const auto source = open_data(c, torch::kCPU, {}, 5);
    Random random(torch::kCPU);
    EXPECT_EQ(source->event(), (std::vector<int64_t>{3, 8, 8}));
    std::set<int64_t> seen;
    int64_t mirrored = 0;
    for (int64_t step = 0; step < 20; ++step) {
      source->prepare(step, 20);
      for (const int64_t number : numbers_in(source->draw(20, random), 20)) {
        ASSERT_GE(number, 0);
        seen.insert(number % 1000);
        mirrored += number >= 1000 ? 1 : 0;
      }
    }
    EXPECT_EQ(seen.size(), 18U);
    EXPECT_NEAR(static_cast<double>(mirrored), 200, 50);
    // The order is the same in each format.
    const auto last = source->draw(20, random);
    if (!first.defined()) first = last;
    EXPECT_TRUE(last.equal(first));
  }
}

TEST_F(ImageSourceTest, StreamFramesAsMemoryDoes) {
  NamedFiles files;
  for (int64_t i = 0; i < 4; ++i) {
    files.emplace_back(std::to_string(i) + ".jpg", jpeg_of(picture(i, 30 + i, 50)));
  }
  write_folder(path("set"), files);
  auto c = config("set");
  c.crop = {3, 2, 43, 29};
  c.size = 16;
  c.held_out = 0;
  const auto pixels = read_images(c, Split::train).pixels;
  c.device_memory = kTiny;
  const auto source = open_data(c, torch::kCPU);
  Random random(torch::kCPU);
  source->prepare(0, 40);
  const auto streamed = bytes_back(source->draw(40, random));
  std::set<int64_t> seen;
  for (int64_t b = 0; b < 40; ++b) {
    for (int64_t i = 0; i < 4; ++i) {
      if (streamed[b].equal(pixels[i])) seen.insert(i);
    }
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST_F(ImageSourceTest, StreamIsAFunctionOfSeedAndStep) {
  write_folder(path("set"), numbered_pngs(50));
  auto c = config("set");
  c.device_memory = kTiny;
  c.flip = true;
  Random random(torch::kCPU);
  const auto batch = [&](DataSource& source, int64_t step) {
    source.prepare(step, 7);
    return source.draw(7, random);
  };
  std::vector<torch::Tensor> uninterrupted;
  const auto one = open_data(c, torch::kCPU, {}, 1);
  for (int64_t step = 0; step < 30; ++step) uninterrupted.push_back(batch(*one, step));
  // Resumed at 20; then back, and far ahead and back again.
  const auto resumed = open_data(c, torch::kCPU, {}, 1);
  for (const int64_t step : {20, 21, 22, 5, 6, 29, 0}) {
    EXPECT_TRUE(batch(*resumed, step).equal(uninterrupted[static_cast<size_t>(step)])) << step;
  }
  EXPECT_FALSE(uninterrupted[0].equal(uninterrupted[1]));
  const auto other = open_data(c, torch::kCPU, {}, 2);
  EXPECT_FALSE(batch(*other, 0).equal(uninterrupted[0]));
}

TEST_F(ImageSourceTest, StreamReplacesWhatDoesNotDecode) {
  auto files = numbered_pngs(150);
  files[40].second = "no picture";
  write_folder(path("set"), files);
  auto c = config("set");
  c.device_memory = kTiny;
  c.held_out = 0;
  std::vector<std::string> warnings;
  ReadHooks hooks;
  hooks.warn = [&](const std::string& text) { warnings.push_back(text); };
  Random random(torch::kCPU);
  const auto run = [&] {
    const auto source = open_data(c, torch::kCPU, hooks);
    std::vector<torch::Tensor> batches;
    for (int64_t step = 0; step < 20; ++step) {
      source->prepare(step, 64);
      batches.push_back(source->draw(64, random));
      EXPECT_TRUE(
          bytes_back(batches.back()).eq(picture(40)).flatten(1).all(1).sum().item<int64_t>() == 0);
    }
    return torch::cat(batches);
  };
  const auto first = run();
  ASSERT_EQ(warnings.size(), 1U) << "named once";
  EXPECT_NE(warnings[0].find("040.png"), std::string::npos) << warnings[0];
  EXPECT_TRUE(run().equal(first));
  files[41].second = "no picture";
  write_folder(path("set"), files);
  EXPECT_THROW(run(), Error);
}

TEST_F(ImageSourceTest, StreamRefusesMixedSizes) {
  auto files = numbered_pngs(5);
  files.emplace_back("zzz.png", png_of(picture(1, 4, 9)));
  write_folder(path("set"), files);
  auto c = config("set");
  c.device_memory = kTiny;
  c.held_out = 0;
  const auto source = open_data(c, torch::kCPU);
  try {
    source->prepare(0, 64);
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("zzz.png is 9 x 4"), std::string::npos) << text;
    EXPECT_NE(text.find("data.size"), std::string::npos) << text;
  }
}

TEST_F(ImageSourceTest, OneImageIsNoSet) {
  write_folder(path("set"), numbered_pngs(1));
  EXPECT_THROW(open_data(config("set"), torch::kCPU), Error);
}

TEST_F(ImageSourceTest, WhatCannotStreamSaysSo) {
  write_npy(path("all.npy"), torch::zeros({10, 3, 16, 16}, torch::kUInt8));
  auto c = config("all.npy");
  c.device_memory = kTiny;
  EXPECT_THROW(open_data(c, torch::kCPU), Error);
}

// Digits whose every pixel is their number, so that a stack says what it was made of.
class StackedMnistTest : public ImageSourceTest {
 protected:
  StackedMnistTest() {
    std::filesystem::create_directories(path("mnist"));
    const auto write = [&](const std::string& part, int64_t n, int64_t base) {
      const auto labels = torch::arange(n).remainder(10).to(torch::kUInt8);
      put_file(path("mnist/" + part + "-labels-idx1-ubyte"), idx_of(labels));
      put_file(path("mnist/" + part + "-images-idx3-ubyte"),
               idx_of((labels + base).view({-1, 1, 1}).expand({n, 28, 28})));
    };
    write("train", 60000, 10);
    write("t10k", 10000, 100);
    config_.name = "stackedmnist";
    config_.root = folder_.path().string();
    config_.stacks = 50;
  }
  DataConfig config_;
};

TEST_F(StackedMnistTest, DrawsFromItsStacksOrWithoutEnd) {
  Random random(torch::kCPU);
  const auto kinds = [&](const DataConfig& c) {
    const auto source = open_data(c, torch::kCPU);
    EXPECT_EQ(source->event(), (std::vector<int64_t>{3, 32, 32}));
    const auto x = bytes_back(source->draw(2000, random));
    EXPECT_EQ(x.select(2, 0).max().item<int64_t>(), 0) << "the border is black";
    const auto middle = x.select(3, 16).select(2, 16).to(torch::kLong) - 10;
    EXPECT_GE(middle.min().item<int64_t>(), 0);
    EXPECT_LE(middle.max().item<int64_t>(), 9);
    const auto labels = middle.select(1, 0) * 100 + middle.select(1, 1) * 10 + middle.select(1, 2);
    std::set<int64_t> seen;
    for (int64_t i = 0; i < labels.size(0); ++i) seen.insert(labels[i].item<int64_t>());
    const auto test = bytes_back(source->draw_held_out(30, random));
    EXPECT_GE(test.select(3, 16).select(2, 16).min().item<int64_t>(), 100);
    return seen;
  };
  const auto table = read_images(config_, Split::train);
  ASSERT_EQ(table.pixels.sizes(), (std::vector<int64_t>{50, 3, 32, 32}));
  std::set<int64_t> in_table;
  for (int64_t i = 0; i < 50; ++i) {
    const auto middle = table.pixels[i].select(2, 16).select(1, 16).to(torch::kLong) - 10;
    const int64_t label = table.labels[i].item<int64_t>();
    EXPECT_EQ(label, 100 * middle[0].item<int64_t>() + 10 * middle[1].item<int64_t>() +
                         middle[2].item<int64_t>());
    in_table.insert(label);
  }
  EXPECT_EQ(kinds(config_), in_table);
  config_.stacks = 0;
  EXPECT_GT(kinds(config_).size(), 700U);  // 865 of 1000 on average
  config_.size = 64;
  EXPECT_THROW(open_data(config_, torch::kCPU), Error);
}

TEST_F(ImageSourceTest, GpuDrawsWhatIsOnDisk) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  write_folder(path("set"), numbered_pngs(20));
  for (const double memory : {16.0, kTiny}) {
    auto c = config("set");
    c.device_memory = memory;
    c.flip = true;
    const auto source = open_data(c, torch::kCUDA);
    Random random(torch::kCUDA);
    for (int64_t step = 0; step < 30; ++step) {
      source->prepare(step, 64);
      const auto x = source->draw(64, random);
      ASSERT_TRUE(x.is_cuda());
      for (const int64_t number : numbers_in(x, 20)) ASSERT_GE(number, 0);
    }
    EXPECT_TRUE(source->draw_held_out(2, random).is_cuda());
  }
}

}  // namespace
}  // namespace ddaebm
