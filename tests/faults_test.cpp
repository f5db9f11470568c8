// What must not lose a run. `./dev faults 300` kills a training 300 times; the suite, ten times.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>
#include <regex>
#include <thread>

#include "run_app.h"
#include "temp_dir.h"
#include <sys/mount.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/random.h"
#include "ddaebm/train/checkpoint.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

struct Faults : testing::Test {
  Faults() {
    Random random(torch::kCPU, 3);
    write_csv(path("rows.csv"), {{}, random.normal({64, 3}, torch::kDouble)});
    std::ofstream(path("tiny.toml")) << R"(
[data]
name = ")" << path("rows.csv") << R"("
[train]
iterations = 150
batch = 8
lr = 1e-3
ema = 0.9
log_every = 5
evaluate_every = 75
evaluation_samples = 1000
checkpoint_every = 7
[net]
branch = [4, 6]
trunk = [8]
embedding = 4
code = 4
)";
  }
  std::string path(const std::string& name) const { return (folder.path() / name).string(); }
  // Starts the run, or goes on with it.
  std::vector<std::string> train(const std::string& run,
                                 const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train",    path("tiny.toml"), "--quiet",
                                    "--resume", "--out",           path(run)};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string last_checkpoint(const std::string& run) const {
    const RunFolder of{path(run)};
    return read_file(of.checkpoint(of.checkpoints().back()));
  }
  std::string metrics(const std::string& run) const {
    return std::regex_replace(read_file(RunFolder{path(run)}.metrics()),
                              std::regex(",\"seconds\":[^,}]*"), "");
  }
  std::string best(const std::string& run) const {
    return read_file(fs::path(path(run)) / "best.json");
  }
  void expect_same_end(const std::string& run, const std::string& whole) const {
    EXPECT_TRUE(last_checkpoint(run) == last_checkpoint(whole)) << run;
    EXPECT_EQ(metrics(run), metrics(whole));
    EXPECT_EQ(best(run), best(whole));
  }
  // Trains with stops until a checkpoint of that iteration or a later one is there.
  void train_until(const std::string& run, int64_t iteration) const {
    const RunFolder of{path(run)};
    App app(train(run));
    while (!app.ended()) {
      if (fs::exists(of.config())) {
        const auto there = of.checkpoints();
        if (!there.empty() && there.back() >= iteration) break;
      }
      std::this_thread::sleep_for(1ms);
    }
    app.signal(SIGKILL);
    app.wait();
  }

  TempDir folder;
};

// Whether write_file is at work in a folder.
bool is_writing(const fs::path& run) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    if (entry.path().extension() == ".tmp") return true;
  }
  return false;
}

TEST_F(Faults, KillsAtRandomInstantsChangeNothing) {
  const char* asked = std::getenv("DDAEBM_KILLS");
  const int kills = asked == nullptr ? 10 : std::atoi(asked);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(run_app(train("whole")).code, 0);
  const auto since = [](auto then) {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                                 then);
  };
  auto duration = since(start);
  std::mt19937_64 dice(8);
  int killed = 0;
  int unfinished = 0;
  int checkpoints = 0;
  int runs = 0;
  while (killed < kills) {
    const std::string run = "run" + std::to_string(runs++);
    int code = -1;
    for (bool fresh = true; code != 0; fresh = false) {
      const auto began = std::chrono::steady_clock::now();
      App app(train(run));
      const auto end =
          began + std::chrono::microseconds(dice() % static_cast<uint64_t>(duration.count()));
      // Every other kill waits for a file in the making.
      const bool wants_file = dice() % 2 == 0;
      bool writing = false;
      while (killed < kills && !app.ended() && !writing &&
             (wants_file || std::chrono::steady_clock::now() < end)) {
        writing = wants_file && std::chrono::steady_clock::now() > end && is_writing(path(run));
        if (!wants_file) std::this_thread::sleep_for(100us);
      }
      if (killed < kills) app.signal(SIGKILL);
      code = app.wait().code;
      // Where the machine has become faster, kills must come sooner, or they come too late.
      if (code == 0 && fresh) duration = std::min(duration, since(began));
      if (code == 0) break;
      ASSERT_EQ(code, 128 + SIGKILL);
      ++killed;
      unfinished += is_writing(path(run)) ? 1 : 0;
      if (!fs::exists(path(run))) continue;
      for (const int64_t iteration : RunFolder{path(run)}.checkpoints()) {
        ++checkpoints;
        EXPECT_NO_THROW(Checkpoint(RunFolder{path(run)}.checkpoint(iteration))) << iteration;
      }
    }
    expect_same_end(run, "whole");
    EXPECT_FALSE(is_writing(path(run))) << "what a kill left behind is removed";
  }
  std::printf(
      "%d kills, %d of them left an unfinished file; %d runs ended in the same bits; "
      "%d checkpoints read, all whole\n",
      killed, unfinished, runs, checkpoints);
}

TEST_F(Faults, FlippedBytesAreFoundAndTheCheckpointBeforeIsUsed) {
  ASSERT_EQ(run_app(train("whole")).code, 0);
  train_until("run", 60);
  const RunFolder run{path("run")};
  const auto newest = run.checkpoint(run.checkpoints().back());
  const std::string good = read_file(newest);
  std::mt19937_64 dice(4);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    const size_t at = i < 100 ? dice() % 600 : dice() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1U << (dice() % 8)));
    std::ofstream(path("flipped"), std::ios::binary) << bad;
    EXPECT_THROW(Checkpoint(path("flipped")), Error) << "byte " << at;
  }
  fs::copy_file(path("flipped"), newest, fs::copy_options::overwrite_existing);
  const auto result = run_app(train("run"));
  EXPECT_EQ(result.code, 0);
  EXPECT_NE(result.err.find(newest.string()), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("the run goes on from iteration"), std::string::npos) << result.err;
  EXPECT_TRUE(fs::exists(newest.string() + ".damaged"));
  expect_same_end("run", "whole");
}

TEST_F(Faults, TwoProcessesCannotTrainInOneFolder) {
  App first(train("run", {"--set", "train.iterations=100000000"}));
  while (!fs::exists(RunFolder{path("run")}.metrics()) && !first.ended()) {
    std::this_thread::sleep_for(1ms);
  }
  const auto second = run_app(train("run", {"--set", "train.iterations=100000000"}));
  EXPECT_EQ(second.code, 2);
  const std::string owner = "process " + std::to_string(first.process()) + " trains there";
  EXPECT_NE(second.err.find(owner), std::string::npos) << second.err;
  EXPECT_FALSE(first.ended());
}

// A file system in memory, gone at the end.
struct Disk {
  explicit Disk(std::string p) : path(std::move(p)) {
    fs::create_directory(path);
    there = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=200k") == 0;
  }
  ~Disk() {
    if (there) ::umount2(path.c_str(), MNT_DETACH);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  bool change(unsigned long flags, const char* options) const {
    return ::mount("tmpfs", path.c_str(), "tmpfs", MS_REMOUNT | flags, options) == 0;
  }
  std::string path;
  bool there = false;
};

// A file system of a few hundred kilobytes, and one that is read-only; only root can make them.
TEST_F(Faults, AFullOrReadOnlyDiskStopsTheRunAndLosesNothing) {
  const Disk disk(path("disk"));
  if (!disk.there) GTEST_SKIP() << "not root";
  const auto full = run_app(train("disk/run", {"--set", "train.keep=100"}));
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("No space left"), std::string::npos) << full.err;
  const RunFolder run{path("disk/run")};
  ASSERT_FALSE(run.checkpoints().empty());
  for (const int64_t i : run.checkpoints()) EXPECT_NO_THROW(Checkpoint(run.checkpoint(i)));

  ASSERT_TRUE(disk.change(MS_RDONLY, "size=200k"));
  const auto read_only = run_app(train("disk/run"));
  EXPECT_EQ(read_only.code, 2);
  EXPECT_NE(read_only.err.find("Read-only"), std::string::npos) << read_only.err;

  ASSERT_TRUE(disk.change(0, "size=20m"));
  EXPECT_EQ(run_app(train("disk/run")).code, 0);
  EXPECT_EQ(run_app(train("whole")).code, 0);
  expect_same_end("disk/run", "whole");
}

TEST_F(Faults, AClockThatJumpsIsNotNoticed) {
  ASSERT_EQ(run_app(train("whole")).code, 0);
  ::setenv("LD_PRELOAD", DDAEBM_JUMPING_CLOCK, 1);
  const auto result = run_app(train("run"));
  const auto ranks = run_app(train("ranks", {"--ranks", "2"}));
  ::unsetenv("LD_PRELOAD");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(ranks.code, 0) << ranks.err;
  expect_same_end("run", "whole");
  for (const auto& line : read_metrics(RunFolder{path("run")}.metrics())) {
    EXPECT_GE(line.at("seconds").get<double>(), 0);
    EXPECT_LT(line.at("seconds").get<double>(), 3600);
  }
}

TEST_F(Faults, DataThatChangeUnderARunAreNoticed) {
  train_until("run", 14);
  const std::string before = read_file(path("rows.csv"));
  Random random(torch::kCPU, 4);
  write_csv(path("rows.csv"), {{}, random.normal({64, 3}, torch::kDouble)});
  const auto result = run_app(train("run"));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("the data have changed since the run began"), std::string::npos)
      << result.err;
  write_file(path("rows.csv"), before);
  EXPECT_EQ(run_app(train("run")).code, 0);
}

TEST_F(Faults, OlderCheckpointsLoadAndLaterOnesAreRefused) {
  ASSERT_EQ(run_app(train("whole")).code, 0);
  train_until("run", 60);
  const RunFolder run{path("run")};
  const auto newest = run.checkpoint(run.checkpoints().back());
  const auto as_format = [&](int version) {
    auto file = read_safetensors(newest);
    file.tensors.erase(kChecksum);
    file.metadata["format"] = "ddaebm checkpoint " + std::to_string(version);
    for (const char* later : {"rate", "rollbacks", "data"}) file.metadata.erase(later);
    write_safetensors(newest, file);
  };
  as_format(3);
  const auto refused = run_app(train("run"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("of format 3, this program knows up to 2"), std::string::npos)
      << refused.err;
  as_format(1);
  EXPECT_EQ(run_app(train("run")).code, 0);
  expect_same_end("run", "whole");
}

TEST_F(Faults, ADivergenceIsExplainedAndRolledBack) {
  // The step size grows until the losses run away; the newest checkpoint then is too late.
  const std::vector<std::string> astray = {
      "--set", "train.lr=1000",     "--set", "train.warmup=100000",
      "--set", "train.log_every=1", "--set", "train.divergence_limit=10000",
      "--set", "train.keep=20",     "--set", "train.checkpoint_every=3"};
  auto stopping = astray;
  stopping.insert(stopping.end(), {"--on-divergence", "stop"});
  const auto stopped = run_app(train("stopped", stopping));
  EXPECT_EQ(stopped.code, 2);
  EXPECT_NE(stopped.err.find("beyond train.divergence_limit"), std::string::npos) << stopped.err;

  auto rolling = astray;
  rolling.insert(rolling.end(), {"--on-divergence", "rollback", "--set",
                                 "train.rollback_rate=0.0001", "--set", "train.rollbacks=20"});
  const auto rolled = run_app(train("rolled", rolling));
  EXPECT_EQ(rolled.code, 0) << rolled.err;
  const auto causes = read_metrics(RunFolder{path("rolled")}.divergences());
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes[0].at("then"), "rollback");
  EXPECT_NE(causes[0].at("what").get<std::string>().find("loss '"), std::string::npos);
  EXPECT_TRUE(causes[0].at("gradient_norms").contains("generator"));
  EXPECT_FALSE(causes[0].at("losses").at("energy").empty());
  const RunFolder run{path("rolled")};
  const Checkpoint last(run.checkpoint(run.checkpoints().back()));
  EXPECT_EQ(last.facts().rollbacks, static_cast<int64_t>(causes.size()));
  EXPECT_EQ(last.facts().iteration, 150);
  EXPECT_LT(last.facts().rate, 1);

  auto hopeless = astray;
  hopeless.insert(hopeless.end(), {"--on-divergence", "rollback", "--set",
                                   "train.rollback_rate=0.99", "--set", "train.rollbacks=2"});
  const auto given_up = run_app(train("hopeless", hopeless));
  EXPECT_EQ(given_up.code, 2);
  EXPECT_NE(given_up.err.find("after 2 rollbacks the run stops"), std::string::npos)
      << given_up.err;
  EXPECT_EQ(read_metrics(RunFolder{path("hopeless")}.divergences()).size(), 3U);
}

}  // namespace
}  // namespace ddaebm
