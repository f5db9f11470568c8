#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "image_fixtures.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/data/image_files.h"
#include "ddaebm/data/source.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

// Six shards of seven pictures, the second gzipped, with members that are none.
struct Shards {
  Shards() {
    for (int64_t s = 0; s < 6; ++s) {
      NamedFiles files;
      for (int64_t i = 0; i < 7; ++i) {
        const std::string key = std::to_string(100 * s + i);
        files.emplace_back(key + ".json", "{}");
        files.emplace_back(key + ".png", png_of(picture(7 * s + i)));
      }
      paths.push_back(folder.path() / (std::to_string(s) + (s == 1 ? ".tar.gz" : ".tar")));
      write_archive(paths.back(), files);
    }
  }
  std::unique_ptr<ImageFiles> open(int64_t lanes, int64_t window, uint64_t seed) const {
    return open_tar_in_order(paths, lanes, window, seed, [](const auto&) {});
  }
  TempDir folder;
  std::vector<fs::path> paths;
};

std::vector<std::string> names(const ImageFiles& files, int64_t first, int64_t count) {
  std::vector<std::string> all;
  for (int64_t i = first; i < first + count; ++i) all.push_back(files.name(i));
  return all;
}

TEST(TarInOrder, EachPictureComesOnceAnEpoch) {
  const Shards shards;
  for (const int64_t lanes : {1, 2, 3}) {
    const auto files = shards.open(lanes, 5, 1);
    ASSERT_EQ(files->size(), 42);
    const auto first = names(*files, 0, 42);
    const auto second = names(*files, 42, 42);
    EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 42U);
    EXPECT_EQ(std::set<std::string>(second.begin(), second.end()).size(), 42U);
    EXPECT_NE(first, second) << "another order every epoch";
  }
}

TEST(TarInOrder, WindowsAreShuffledWithinTheOrderOfShards) {
  const Shards shards;
  const auto order = names(*shards.open(1, 7, 1), 0, 42);
  // A window of a shard's size holds that shard, in another order than it is stored.
  bool shuffled = false;
  for (size_t w = 0; w < 6; ++w) {
    std::vector<std::string> window(order.begin() + static_cast<std::ptrdiff_t>(7 * w),
                                    order.begin() + static_cast<std::ptrdiff_t>(7 * w + 7));
    const auto shard = [](const std::string& name) { return name.substr(0, name.find(" [")); };
    for (const auto& name : window) EXPECT_EQ(shard(name), shard(window[0]));
    shuffled = shuffled || !std::is_sorted(window.begin(), window.end());
  }
  EXPECT_TRUE(shuffled);
  EXPECT_NE(order, names(*shards.open(1, 7, 2), 0, 42)) << "another seed, another order";
}

TEST(TarInOrder, AnyPictureCanBeResumedFrom) {
  const Shards shards;
  const auto whole = names(*shards.open(2, 5, 1), 0, 130);
  for (const int64_t from : {1, 13, 41, 77, 120}) {
    EXPECT_EQ(names(*shards.open(2, 5, 1), from, 130 - from),
              std::vector<std::string>(whole.begin() + from, whole.end()));
  }
}

TEST(TarInOrder, RanksTakeTheirPartOfTheJoinedBatch) {
  const Shards shards;
  DataConfig config;
  config.name = shards.folder.path().string();
  config.in_order = true;
  config.lanes = 2;
  config.shuffle = 5;
  const auto batch = [&](int64_t step, Share share) {
    const auto source = open_data(config, torch::kCPU, {}, 3, share);
    const int64_t n = 8 / share.size;
    source->prepare(step, n);
    Random random(torch::kCPU);
    return source->draw(n, random);
  };
  for (const int64_t step : {0, 1, 9}) {
    const auto joined = batch(step, {});
    EXPECT_TRUE(torch::equal(joined, torch::cat({batch(step, {0, 2}), batch(step, {1, 2})})));
    EXPECT_TRUE(torch::equal(joined.slice(0, 6), batch(step, {3, 4})));
  }
}

TEST(TarInOrder, AShardThatChangesUnderTheRunIsAnError) {
  const Shards shards;
  const auto files = shards.open(1, 5, 1);
  for (const auto& path : shards.paths) write_archive(path, {{"0.png", "x"}});
  EXPECT_THROW(names(*files, 0, 42), Error);
}

TEST(TarInOrder, TooManyLanesOrTooFewShardsAreErrors) {
  const Shards shards;
  EXPECT_THROW(shards.open(7, 5, 1), Error);
  DataConfig config;
  config.name = shards.paths[0].string();
  config.in_order = true;
  EXPECT_THROW(open_data(config, torch::kCPU), Error);
}

}  // namespace
}  // namespace ddaebm
