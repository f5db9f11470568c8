// TensorBoard's event files: checksums, records, and what the real TensorBoard reads in them.

#include "ddaebm/io/event_file.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
}

uint64_t number_at(const std::string& bytes, size_t at, size_t width) {
  uint64_t value = 0;
  for (size_t i = width; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

uint32_t masked(const std::string& bytes) {
  const uint32_t crc = crc32c(bytes);
  return static_cast<uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8U);
}

// The events of a file, each record's checksums checked.
std::vector<std::string> events_of(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = number_at(file, at, 8);
    EXPECT_EQ(number_at(file, at + 8, 4), masked(file.substr(at, 8)));
    events.push_back(file.substr(at + 12, length));
    EXPECT_EQ(events.back().size(), length);
    EXPECT_EQ(number_at(file, at + 12 + length, 4), masked(events.back()));
    at += 16 + length;
  }
  return events;
}

TEST(EventFile, RecordsAreWholeAfterEachCall) {
  const TempDir folder;
  EventFile file(folder.path(), 1);
  EXPECT_EQ(file.path().filename().string().rfind("events.out.tfevents.", 0), 0U);
  EXPECT_EQ(events_of(file.path()).size(), 2U);
  file.scalar("loss", 300, -1.5);
  const auto events = events_of(file.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  // After the time: step 300 as a varint; summary of one value: tag, float32.
  const std::string expected("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\xbf", 18);
  EXPECT_EQ(events[2].substr(9), expected);
  EXPECT_THROW(EventFile(folder.path() / "absent", 1), Error);
}

// A python3 that has TensorBoard, or nothing.
std::string python_with_tensorboard() {
  const char* named = std::getenv("DDAEBM_TEST_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  const std::string try_it = python + " -c 'import tensorboard' 2>/dev/null";
  return std::system(try_it.c_str()) == 0 ? python : "";
}

// What TensorBoard's own reader finds in a folder.
nlohmann::json read_by_tensorboard(const std::string& python, const std::filesystem::path& folder) {
  const TempDir scratch;
  write_file(scratch.path() / "read.py", R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0, 'images': 0, 'tensors': 0})
events.Reload()
tags = events.Tags()
found = {'scalars': {}, 'images': {}, 'histograms': {}}
for tag in tags['scalars']:
    found['scalars'][tag] = [[e.step, e.value] for e in events.Scalars(tag)]
for tag in tags['images']:
    found['images'][tag] = [[e.step, e.height, e.width, len(e.encoded_image_string)] for e in events.Images(tag)]
for tag in tags['histograms']:
    found['histograms'][tag] = [[e.step, e.histogram_value.num, e.histogram_value.min, e.histogram_value.max,
                                 sum(e.histogram_value.bucket)] for e in events.Histograms(tag)]
json.dump(found, open(sys.argv[2], 'w'))
)");
  const auto out = scratch.path() / "found.json";
  const std::string command = python + " " + (scratch.path() / "read.py").string() + " " +
                              folder.string() + " " + out.string() + " 2>/dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return nlohmann::json::parse(read_file(out));
}

TEST(EventFile, TensorBoardReadsIt) {
  const std::string python = python_with_tensorboard();
  if (python.empty()) GTEST_SKIP() << "no TensorBoard: pip install tensorboard";
  const TempDir folder;
  {
    EventFile file(folder.path(), 1);
    file.scalar("training/energy", 100, 0.25);
    file.scalar("training/energy", 200, -3e5);
    file.scalar("training/energy", 300, 7);
    file.picture("density.png", 200, torch::full({3, 5, 3}, 200, torch::kUInt8));
    const std::vector<double> values = {1, 2, 2, 3, 8, std::numeric_limits<double>::quiet_NaN()};
    file.histogram("score/samples", 200, values);
    file.histogram("score/none", 200, {});
  }
  auto found = read_by_tensorboard(python, folder.path());
  EXPECT_EQ(found["scalars"]["training/energy"],
            nlohmann::json::parse("[[100, 0.25], [200, -3e5], [300, 7.0]]"));
  ASSERT_EQ(found["images"]["density.png"].size(), 1U);
  EXPECT_EQ(found["images"]["density.png"][0][1], 3);
  EXPECT_EQ(found["images"]["density.png"][0][2], 5);
  EXPECT_EQ(found["histograms"]["score/samples"],
            nlohmann::json::parse("[[200, 5.0, 1.0, 8.0, 5.0]]"));
  EXPECT_FALSE(found["histograms"].contains("score/none"));

  // A run that goes on from iteration 200 does the rest again.
  EventFile file(folder.path(), 201);
  file.scalar("training/energy", 250, 5);
  found = read_by_tensorboard(python, folder.path());
  EXPECT_EQ(found["scalars"]["training/energy"],
            nlohmann::json::parse("[[100, 0.25], [200, -3e5], [250, 5.0]]"));
}

TEST(EventFile, TrainingWritesWhatMetricsHold) {
  const TempDir folder;
  const std::string run = (folder.path() / "run").string();
  const std::vector<std::string> settings = {"train",
                                             "moons",
                                             "--out",
                                             run,
                                             "--quiet",
                                             "--set",
                                             "net.trunk=[8]",
                                             "--set",
                                             "net.branch=[8]",
                                             "--set",
                                             "train.iterations=6",
                                             "--set",
                                             "train.log_every=2",
                                             "--set",
                                             "train.evaluation_samples=1000"};
  ASSERT_EQ(run_app(settings).code, 0);
  std::filesystem::path events;
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    if (entry.path().filename().string().rfind("events.out", 0) == 0) events = entry.path();
  }
  ASSERT_FALSE(events.empty());
  std::string all;
  for (const auto& event : events_of(events)) all += event;
  for (const char* tag : {"training/energy_real", "training/lr", "evaluation/kl", "density.png",
                          "score/held_out", "score/samples"}) {
    EXPECT_NE(all.find(tag), std::string::npos) << tag;
  }
  auto without = settings;
  without[3] = (folder.path() / "without").string();
  without.insert(without.end(), {"--set", "train.tensorboard=false"});
  ASSERT_EQ(run_app(without).code, 0);
  for (const auto& entry : std::filesystem::directory_iterator(without[3])) {
    EXPECT_EQ(entry.path().filename().string().find("events.out"), std::string::npos);
  }
}

}  // namespace
}  // namespace ddaebm
