#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/data/source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// 64 rows of three columns, multiples of 1/16, so that sums of them have no rounding.
torch::Tensor rows(double scale = 1, double shift = 0) {
  Random random(torch::kCPU, 77);
  const auto x = (random.normal({64, 3}, torch::kDouble) * 16).round() / 16;
  return x * scale + shift;
}

// metrics.jsonl without the time that each line was written at.
std::string metrics_but_time(const fs::path& run) {
  return std::regex_replace(read_file(RunFolder{run}.metrics()), std::regex(",\"seconds\":[^,}]*"),
                            "");
}

// A folder with a table and runs on it.
struct Workshop {
  Workshop() { write_csv(table(), {{}, rows()}); }
  fs::path table() const { return folder.path() / "table.csv"; }
  fs::path path(const std::string& name) const { return folder.path() / name; }

  std::string toml(const std::vector<std::string>& changes = {}) const {
    auto file = ConfigFile::parse(R"(
[train]
iterations = 12
batch = 8
lr = 1e-3
ema = 0.9
log_every = 2
evaluate_every = 0
evaluation_samples = 1000
checkpoint_every = 5
[net]
branch = [4, 6]
trunk = [8]
embedding = 4
code = 4
)",
                                  "tiny.toml");
    file.set("data.name=\"" + table().string() + "\"");
    for (const auto& change : changes) file.set(change);
    return RunSettings(file).to_toml();
  }
  RunSettings settings(const std::vector<std::string>& changes = {}) const {
    return RunSettings(ConfigFile::parse(toml(changes), "tiny.toml"));
  }
  TrainResult train(const std::string& name, const std::vector<std::string>& changes = {},
                    bool resume = false, bool stop_after_one = false) const {
    RunSettings s = settings(changes);
    const std::atomic<int> stop{stop_after_one ? 1 : 0};
    TrainOptions options;
    options.folder = path(name);
    options.resume = resume;
    options.quiet = true;
    return ddaebm::train(s, options, stop);
  }
  std::string error_of(const std::string& name, const std::vector<std::string>& changes = {},
                       bool resume = false) const {
    try {
      train(name, changes, resume);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  std::string checkpoint(const std::string& name, int64_t iteration) const {
    return read_file(RunFolder{path(name)}.checkpoint(iteration));
  }
  std::vector<int64_t> checkpoints(const std::string& name) const {
    return RunFolder{path(name)}.checkpoints();
  }

  TempDir folder;
};

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

// The iterations of the lines of metrics.jsonl that hold a loss, or a number of an evaluation.
std::vector<int64_t> logged(const fs::path& run, const std::string& key) {
  std::vector<int64_t> found;
  std::istringstream lines(read_file(RunFolder{run}.metrics()));
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = json::parse(line);
    if (parsed.contains(key)) found.push_back(parsed.at("iteration"));
  }
  return found;
}

TEST(Training, LeavesAWholeRunFolder) {
  const Workshop shop;
  const auto result = shop.train("run");
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(shop.checkpoints("run"), (std::vector<int64_t>{10, 12})) << "the newest two";
  EXPECT_EQ(logged(shop.path("run"), "generator"), (std::vector<int64_t>{2, 4, 5, 6, 8, 10, 12}));
  EXPECT_EQ(logged(shop.path("run"), "mmd"), (std::vector<int64_t>{12}));
  EXPECT_TRUE(fs::exists(shop.path("run") / "report.html"));
  EXPECT_EQ(read_file(shop.path("run") / "config.toml"), shop.toml());
  const auto evaluation = json::parse(read_file(shop.path("run") / "evaluation.json"));
  EXPECT_EQ(evaluation.at("iteration"), 12);
  ASSERT_FALSE(result.numbers.empty());
  for (const auto& [name, value] : result.numbers) EXPECT_EQ(evaluation.at(name), value) << name;
}

TEST(Training, ASeedFixesEveryBit) {
  const Workshop shop;
  shop.train("a");
  shop.train("b");
  shop.train("c", {"seed=1"});
  EXPECT_TRUE(shop.checkpoint("a", 12) == shop.checkpoint("b", 12));
  EXPECT_FALSE(shop.checkpoint("a", 12) == shop.checkpoint("c", 12));
  EXPECT_EQ(metrics_but_time(shop.path("a")), metrics_but_time(shop.path("b")));
}

TEST(Training, StoppedAfterEveryStepItEndsInTheSameBits) {
  const Workshop shop;
  shop.train("whole");
  const std::vector<std::string> also_cosine = {"train.schedule=cosine", "train.warmup=3",
                                                "train.beta1=0.5"};
  shop.train("whole-cosine", also_cosine);
  for (const bool cosine : {false, true}) {
    const std::string name = cosine ? "pieces-cosine" : "pieces";
    const auto changes = cosine ? also_cosine : std::vector<std::string>{};
    for (int64_t i = 1; i <= 12; ++i) {
      const auto result = shop.train(name, changes, /*resume=*/i > 1, /*stop_after_one=*/true);
      EXPECT_EQ(result.finished, i == 12);
      EXPECT_EQ(shop.checkpoints(name).back(), i);
    }
    EXPECT_TRUE(shop.checkpoint(name, 12) ==
                shop.checkpoint(cosine ? "whole-cosine" : "whole", 12));
    std::vector<int64_t> every;
    for (int64_t i = 1; i <= 12; ++i) every.push_back(i);
    EXPECT_EQ(logged(shop.path(name), "generator"), every) << "none twice, none missing";
    EXPECT_EQ(logged(shop.path(name), "mmd"), (std::vector<int64_t>{12}));
  }
}

TEST(Training, AResumedRunLogsTheIterationsOfOneLeftAlone) {
  const Workshop shop;
  shop.train("whole", {"train.evaluate_every=4"});
  shop.train("run", {"train.evaluate_every=4"}, false, true);  // stops at 1
  shop.train("run", {"train.evaluate_every=4"}, true);
  const auto whole = logged(shop.path("whole"), "generator");
  auto run = logged(shop.path("run"), "generator");
  ASSERT_FALSE(run.empty());
  EXPECT_EQ(run.front(), 1) << "what the stop flushed";
  run.erase(run.begin());
  EXPECT_EQ(run, whole);
  EXPECT_EQ(logged(shop.path("run"), "mmd"), (std::vector<int64_t>{4, 8, 12}));
  EXPECT_TRUE(shop.checkpoint("whole", 12) == shop.checkpoint("run", 12));
}

TEST(Training, ResumingAFinishedRunChangesNothing) {
  const Workshop shop;
  shop.train("run");
  const auto before = snapshot(shop.path("run"));
  EXPECT_TRUE(shop.train("run", {}, true).finished);
  EXPECT_TRUE(snapshot(shop.path("run")) == before);
}

TEST(Training, MetricsOfIterationsToBeDoneAgainAreDropped) {
  const Workshop shop;
  shop.train("whole");
  shop.train("run", {}, false, true);
  {
    // As a run killed between two checkpoints leaves it: lines ahead, the last one half written.
    std::ofstream out(RunFolder{shop.path("run")}.metrics(), std::ios::app);
    out << R"({"iteration":2,"generator":1.0})" << '\n'
        << R"({"iteration":"x"})" << '\n'
        << R"({"iteration":4,"gener)";
  }
  shop.train("run", {}, true);
  EXPECT_EQ(logged(shop.path("run"), "generator"),
            (std::vector<int64_t>{1, 2, 4, 5, 6, 8, 10, 12}));
  EXPECT_TRUE(shop.checkpoint("run", 12) == shop.checkpoint("whole", 12));
}

// A signal that comes while the run evaluates must not end it without a checkpoint.
TEST(Training, AStopDuringAnEvaluationStillLeavesACheckpoint) {
  const Workshop shop;
  RunSettings s = shop.settings({"data.name=8gaussians", "train.evaluate_every=1",
                                 "train.checkpoint_every=1000", "train.iterations=1000"});
  TrainOptions options;
  options.folder = shop.path("run");
  options.quiet = true;
  std::atomic<int> stop{0};
  std::thread asker([&] {
    while (!fs::exists(options.folder / "evaluation.json")) std::this_thread::yield();
    stop = 15;
  });
  const auto result = train(s, options, stop);
  asker.join();
  EXPECT_FALSE(result.finished);
  EXPECT_FALSE(shop.checkpoints("run").empty());
}

// The real program, killed at six moments that nothing announces.
TEST(Training, KilledAgainAndAgainItEndsInTheSameBits) {
  const Workshop shop;
  const std::vector<std::string> changes = {"train.iterations=300", "train.checkpoint_every=23",
                                            "train.log_every=10"};
  write_file(shop.path("killed.toml"), shop.toml(changes));
  shop.train("warm", {"train.iterations=1"});
  const auto command = [&](const std::string& out) {
    return std::vector<std::string>{"train", shop.path("killed.toml").string(), "--quiet",
                                    "--out", shop.path(out).string(),           "--resume"};
  };
  const auto whole = run_app(command("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;

  std::minstd_rand dice(2026);
  const RunFolder run{shop.path("run")};
  int killed = 0;
  for (int64_t kill = 0; kill < 6; ++kill) {
    App app(command("run"));
    // Wait until it is some way further, then for a moment that is not tied to any event in it.
    const auto further = [&] {
      if (!fs::exists(run.config())) return false;
      if (kill == 0) return true;
      const auto there = run.checkpoints();
      return !there.empty() && there.back() >= 40 * kill;
    };
    while (!further() && !app.ended()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(dice() % 15000));
    app.signal(SIGKILL);
    killed += app.wait().code == 128 + SIGKILL ? 1 : 0;
  }
  EXPECT_GT(killed, 0);
  const auto last = run_app(command("run"));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_TRUE(shop.checkpoint("run", 300) == shop.checkpoint("whole", 300));
  EXPECT_EQ(metrics_but_time(run.path), metrics_but_time(shop.path("whole")));
}

TEST(Training, DataTooLargeStopsItWithTheLossNamed) {
  const Workshop shop;
  write_csv(shop.table(), {{}, rows() * 1e30});
  const std::string message = shop.error_of("run", {"data.standardise=never"});
  expect_mentions(message, {"iteration 1: loss '", "lower train.lr", "There is no checkpoint yet"});
  EXPECT_TRUE(shop.checkpoints("run").empty());
}

TEST(Training, AnUpdateThatIsNotFiniteIsNeverSaved) {
  const Workshop shop;
  // An eps that float32 takes for zero: weights that no loss moves, the encoder's here, are moved
  // by 0 / 0. The losses are sound.
  const std::string message =
      shop.error_of("run", {"train.eps=1e-60", "train.checkpoint_every=1", "game.divergence=kl",
                            "game.posterior_term=false", "game.fake_weight=0.5"});
  expect_mentions(message, {"iteration 1: tensor 'weight.", "is not finite"});
  EXPECT_TRUE(shop.checkpoints("run").empty());
}

TEST(Training, ADivergingRunKeepsTheCheckpointsFromBefore) {
  const Workshop shop;
  // The step size grows without end.
  const std::string message = shop.error_of(
      "run", {"train.lr=1000", "train.warmup=100000", "train.iterations=2000", "train.keep=3",
              "train.log_every=1", "train.checkpoint_every=1", "train.divergence_limit=1000"});
  expect_mentions(message, {"loss '", "beyond train.divergence_limit = 1000", "lower train.lr"});
  const int64_t at = std::stoll(message.substr(std::string("iteration ").size()));
  ASSERT_GT(at, 4) << message;
  EXPECT_EQ(shop.checkpoints("run"), (std::vector<int64_t>{at - 3, at - 2, at - 1}));
  expect_mentions(message, {RunFolder{shop.path("run")}.checkpoint(at - 1).string()});
  for (const int64_t iteration : shop.checkpoints("run")) {
    const auto file = read_safetensors(RunFolder{shop.path("run")}.checkpoint(iteration));
    for (const auto& [name, tensor] : file.tensors) {
      EXPECT_TRUE(tensor.isfinite().all().item<bool>()) << name;
    }
  }
  EXPECT_EQ(logged(shop.path("run"), "generator").back(), at - 1);
}

TEST(Training, KeepsAsManyCheckpointsAsAsked) {
  const Workshop shop;
  for (const int64_t keep : {1, 3, 100}) {
    const std::string name = "keep" + std::to_string(keep);
    shop.train(name, {"train.checkpoint_every=2", "train.keep=" + std::to_string(keep)});
    const std::vector<int64_t> all = {2, 4, 6, 8, 10, 12};
    const auto n = std::min<size_t>(all.size(), static_cast<size_t>(keep));
    EXPECT_EQ(shop.checkpoints(name),
              std::vector<int64_t>(all.end() - static_cast<long>(n), all.end()));
  }
}

TEST(Training, ResumesWithTheRunsOwnSettingsOnly) {
  const Workshop shop;
  shop.train("run", {}, false, true);
  const auto before = snapshot(shop.path("run"));
  expect_mentions(shop.error_of("run", {"train.lr=2e-3"}, true),
                  {"train.lr = 0.001", "0.002", "--resume", "--out"});
  expect_mentions(shop.error_of("run", {"seed=3"}, true), {"seed = 0", "3"});
  expect_mentions(shop.error_of("run", {"net.trunk=[9]"}, true), {"net.trunk = [8]", "[9]"});
  expect_mentions(shop.error_of("run", {"game.latent=false"}, true), {"game.latent = true"});
  EXPECT_TRUE(snapshot(shop.path("run")) == before) << "nothing is touched";
  EXPECT_EQ(shop.error_of("run",
                          {"train.log_every=3", "train.evaluate_every=6", "train.keep=7",
                           "train.checkpoint_every=4", "train.evaluation_samples=1500",
                           "train.divergence_limit=1e9"},
                          true),
            "no error");
  shop.train("whole");
  EXPECT_TRUE(shop.checkpoint("run", 12) == shop.checkpoint("whole", 12));
}

TEST(Training, AFolderThatHoldsARunIsNotOverwritten) {
  const Workshop shop;
  shop.train("run", {}, false, true);
  const auto before = snapshot(shop.path("run"));
  expect_mentions(shop.error_of("run"), {"holds a run already", "--resume", "--out"});
  EXPECT_TRUE(snapshot(shop.path("run")) == before);
  fs::remove(RunFolder{shop.path("run")}.config());
  expect_mentions(shop.error_of("run"), {"holds checkpoints", "--out"});
  EXPECT_EQ(shop.checkpoints("run"), (std::vector<int64_t>{1}));
}

TEST(Training, BadCheckpointsAreErrorsAndStayAsTheyAre) {
  const Workshop shop;
  shop.train("run", {}, false, true);
  shop.train("wide", {"net.trunk=[9]"}, false, true);
  const auto newest = RunFolder{shop.path("run")}.checkpoint(1);
  const std::string good = read_file(newest);
  const auto wide = RunFolder{shop.path("wide")}.checkpoint(1);
  Safetensors foreign;
  foreign.tensors["weight"] = torch::zeros({3});
  write_safetensors(shop.path("foreign.safetensors"), foreign);
  const auto changed = [&](const std::function<void(Safetensors&)>& change) {
    auto file = read_safetensors(newest);
    file.tensors.erase(kChecksum);
    change(file);
    write_safetensors(shop.path("changed.safetensors"), file, /*with_checksum=*/true);
    return read_file(shop.path("changed.safetensors"));
  };
  const std::vector<std::pair<std::string, std::string>> all = {
      {"truncated", good.substr(0, good.size() / 2)},
      {"truncated in the header", good.substr(0, 20)},
      {"empty", ""},
      {"garbage", std::string(5000, 'x')},
      {"format is ''", read_file(shop.path("foreign.safetensors"))},
      {"has shape", read_file(wide)},
      {"method 'gan'", changed([](Safetensors& f) { f.metadata["method"] = "gan"; })},
      {"iteration '7'", changed([](Safetensors& f) { f.metadata["iteration"] = "7"; })},
      {"is missing",
       changed([](Safetensors& f) { f.tensors.erase(f.tensors.lower_bound("average.")); })}};
  for (const auto& [what, bytes] : all) {
    SCOPED_TRACE(what);
    write_file(newest, bytes);
    const auto before = snapshot(shop.path("run"));
    const std::string message = shop.error_of("run", {}, true);
    expect_mentions(message, {newest.string()});
    if (what.find("truncated") == std::string::npos && what != "empty" && what != "garbage") {
      expect_mentions(message, {what});
    }
    EXPECT_TRUE(snapshot(shop.path("run")) == before) << "nothing is overwritten";
    EXPECT_THROW(Model::load(shop.path("run"), torch::kCPU), Error);
  }
  write_file(newest, changed([](Safetensors& f) {
               f.tensors["units.shift"] = f.tensors["units.scale"] = torch::zeros({});
             }));
  EXPECT_THROW(Model::load(shop.path("run"), torch::kCPU), Error);
  write_file(newest, good);
  EXPECT_EQ(shop.error_of("run", {}, true), "no error");
}

TEST(Training, OtherFilesInTheFolderAreNotTakenForCheckpoints) {
  const Workshop shop;
  shop.train("run", {}, false, true);
  for (const char* name : {"checkpoint-99.safetensors", "checkpoint-x.safetensors",
                           "checkpoint-000000099.safetensors.tmp", "checkpoint-.safetensors"}) {
    write_file(shop.path("run") / name, "x");
  }
  EXPECT_EQ(shop.checkpoints("run"), (std::vector<int64_t>{1}));
  EXPECT_EQ(shop.error_of("run", {}, true), "no error");
}

// RLIMIT_FSIZE stands for the full disk: the checkpoint does not fit.
TEST(Training, AFullDiskLeavesTheOldCheckpoint) {
  const Workshop shop;
  shop.train("run", {}, false, true);
  const auto newest = RunFolder{shop.path("run")}.checkpoint(1);
  ASSERT_GT(fs::file_size(newest), 16000U);
  const std::string config = read_file(RunFolder{shop.path("run")}.config());
  const std::string good = read_file(newest);
  for (const rlim_t limit : {16000, 1000}) {  // settings fit, or not even those
    SCOPED_TRACE(limit);
    const auto result = run_app({"train", shop.path("run").string(), "--resume", "--quiet"}, limit);
    EXPECT_EQ(result.code, 2);
    EXPECT_EQ(result.err.rfind("ddaebm: ", 0), 0U) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(shop.checkpoints("run"), (std::vector<int64_t>{1}));
    EXPECT_TRUE(read_file(newest) == good);
    EXPECT_EQ(read_file(RunFolder{shop.path("run")}.config()), config);
    for (const auto& [path, bytes] : snapshot(shop.path("run"))) {
      EXPECT_EQ(path.find(".tmp"), std::string::npos) << path;
    }
  }
  shop.train("whole");
  shop.train("run", {}, true);
  EXPECT_TRUE(shop.checkpoint("run", 12) == shop.checkpoint("whole", 12));
}

SeedsResult train_seeds(const Workshop& shop, const std::string& name,
                        const std::vector<std::string>& changes, int stop = 0,
                        bool resume = false) {
  RunSettings settings = shop.settings(changes);
  TrainOptions options;
  options.folder = shop.path(name);
  options.resume = resume;
  options.quiet = true;
  return ddaebm::train_seeds(settings, options, 2, std::atomic<int>{stop});
}

TEST(Seeds, EachEndsInTheBitsOfARunAlone) {
  const Workshop shop;
  const auto alone = shop.train("alone", {"seed=4"}).numbers;
  const auto result = train_seeds(shop, "both", {"seed=3"});
  EXPECT_TRUE(result.finished);
  EXPECT_TRUE(result.failures.empty());
  const fs::path second = shop.path("both") / "seed-4";
  EXPECT_EQ(metrics_but_time(second), metrics_but_time(shop.path("alone")));
  EXPECT_EQ(read_file(RunFolder{second}.checkpoint(12)),
            read_file(RunFolder{shop.path("alone")}.checkpoint(12)));

  const auto together = json::parse(read_file(shop.path("both") / "seeds.json"));
  EXPECT_EQ(together["seeds"], json({3, 4}));
  ASSERT_EQ(result.numbers.size(), alone.size());
  std::map<std::string, double> expected(alone.begin(), alone.end());
  for (const auto& [name, mean, deviation] : result.numbers) {
    const std::vector<double> values = together["values"][name];
    ASSERT_EQ(values.size(), 2U);
    EXPECT_EQ(values[1], expected.at(name)) << name;
    EXPECT_NEAR(mean, (values[0] + values[1]) / 2, 1e-12 * std::abs(mean)) << name;
    EXPECT_NEAR(deviation, std::abs(values[0] - values[1]) / std::sqrt(2.0), 1e-9 * std::abs(mean))
        << name;
  }
}

TEST(Seeds, StoppedTheyGoOn) {
  const Workshop shop;
  EXPECT_TRUE(train_seeds(shop, "whole", {}).finished);
  EXPECT_FALSE(train_seeds(shop, "parts", {}, /*stop=*/1).finished);
  EXPECT_FALSE(fs::exists(shop.path("parts") / "seeds.json"));
  EXPECT_TRUE(train_seeds(shop, "parts", {}, 0, /*resume=*/true).finished);
  EXPECT_EQ(read_file(shop.path("parts") / "seeds.json"),
            read_file(shop.path("whole") / "seeds.json"));
  // Once more, with nothing left to do.
  EXPECT_TRUE(train_seeds(shop, "parts", {}, 0, /*resume=*/true).finished);
  EXPECT_EQ(read_file(shop.path("parts") / "seeds.json"),
            read_file(shop.path("whole") / "seeds.json"));
}

TEST(Seeds, OneThatDivergesIsNamedAndTheOtherGoesOn) {
  const Workshop shop;
  const std::vector<std::string> changes = {"train.log_every=1", "seed=7"};
  ASSERT_TRUE(train_seeds(shop, "free", changes).finished);
  const auto greatest_loss = [&](const char* seed) {
    std::istringstream lines(read_file(RunFolder{shop.path("free") / seed}.metrics()));
    double greatest = 0;
    for (std::string line; std::getline(lines, line);) {
      const auto of_line = json::parse(line);
      if (!of_line.contains("generator")) continue;
      for (const auto& [name, value] : of_line.items()) {
        if (name == "iteration" || name == "seconds" || name == "lr") continue;
        greatest = std::max(greatest, std::abs(value.get<double>()));
      }
    }
    return greatest;
  };
  const double seventh = greatest_loss("seed-7");
  const double eighth = greatest_loss("seed-8");
  ASSERT_NE(seventh, eighth);
  auto limited = changes;
  limited.push_back(fmt::format("train.divergence_limit={}", (seventh + eighth) / 2));
  const auto result = train_seeds(shop, "limited", limited);
  EXPECT_TRUE(result.finished);
  ASSERT_EQ(result.failures.size(), 1U);
  const std::string named = seventh > eighth ? "seed 7: iteration" : "seed 8: iteration";
  EXPECT_NE(result.failures[0].find(named), std::string::npos) << result.failures[0];
  const auto together = json::parse(read_file(shop.path("limited") / "seeds.json"));
  EXPECT_EQ(together["seeds"], json({seventh > eighth ? 8 : 7}));
  EXPECT_FALSE(result.numbers.empty());
}

TEST(Table, StandardisesByTheColumnsMomentsUnlessToldNot) {
  const Workshop shop;
  DataConfig config;
  config.name = shop.table().string();
  const auto x = rows();
  const auto units = open_data(config, torch::kCPU)->units();
  EXPECT_LE((units.shift - x.mean(0)).abs().max().item<double>(), 1e-14);
  EXPECT_LE((units.scale - (x - x.mean(0)).square().mean(0).sqrt()).abs().max().item<double>(),
            1e-14);
  const auto model = units.to_model(x);
  EXPECT_LE(model.mean(0).abs().max().item<double>(), 1e-14);
  EXPECT_LE((model.square().mean(0) - 1).abs().max().item<double>(), 1e-14);
  EXPECT_LE((units.to_data(model) - x).abs().max().item<double>(), 1e-14);
  EXPECT_NEAR(units.log_density_gain().item<double>(), -units.scale.log().sum().item<double>(),
              1e-15);
  config.standardise = Standardise::never;
  const auto identity = open_data(config, torch::kCPU)->units();
  EXPECT_TRUE(torch::equal(identity.to_model(x), x));
  EXPECT_EQ(identity.log_density_gain().item<double>(), 0);
}

std::set<std::vector<double>> as_set(const torch::Tensor& table) {
  std::set<std::vector<double>> out;
  const auto x = table.to(torch::kDouble).contiguous();
  for (int64_t i = 0; i < x.size(0); ++i) {
    const double* row = x.data_ptr<double>() + i * x.size(1);
    out.emplace(row, row + x.size(1));
  }
  return out;
}

TEST(Table, HoldsOutTheSameRowsAlwaysAndTrainsOnNoneOfThem) {
  const Workshop shop;
  DataConfig config;
  config.name = shop.table().string();
  config.held_out = 0.25;
  Random one(torch::kCPU, 1);
  const auto first = open_data(config, torch::kCPU);
  const auto held_out = as_set(first->draw_held_out(1000, one));
  const auto trained = as_set(first->draw(5000, one));
  Random two(torch::kCPU, 2);
  EXPECT_EQ(as_set(open_data(config, torch::kCPU)->draw_held_out(1000, two)), held_out);
  EXPECT_EQ(held_out.size(), 16U);
  EXPECT_EQ(trained.size(), 48U);
  auto all = held_out;
  all.insert(trained.begin(), trained.end());
  EXPECT_EQ(all, as_set(rows())) << "together they are the file";
  EXPECT_EQ(first->event(), (std::vector<int64_t>{3}));
}

// The change of variables: p_y(y) = p_x(x) / |dy/dx|.
TEST(Table, ScoresFollowAChangeOfUnitsExactly) {
  const Workshop shop;
  shop.train("x");
  Model of_x = Model::load(shop.path("x"), torch::kCPU);
  const auto x = rows();
  const auto scores = of_x.log_density(x);
  ASSERT_EQ(scores.sizes(), torch::IntArrayRef({64}));
  struct Map {
    double scale, shift, tolerance;
  };
  // Powers of two have no rounding: the model trained on y is the same bit for bit. The large
  // shift leaves no digits of the data in float32.
  for (const auto& [scale, shift, tolerance] : {Map{8, 4, 1e-12}, Map{1, 67108864, 1e-4}}) {
    SCOPED_TRACE(scale);
    write_csv(shop.table(), {{}, rows(scale, shift)});
    const std::string name = "y" + std::to_string(scale);
    shop.train(name);
    Model of_y = Model::load(shop.path(name), torch::kCPU);
    const auto wanted = scores - 3 * std::log(scale);
    EXPECT_LE((of_y.log_density(rows(scale, shift)) - wanted).abs().max().item<double>(),
              tolerance);
  }
  // Any other map up to rounding, which twelve iterations do not have the time to blow up.
  write_csv(shop.table(), {{}, rows(10, 3)});
  shop.train("ten");
  Model ten = Model::load(shop.path("ten"), torch::kCPU);
  const auto wanted = scores - 3 * std::log(10.0);
  EXPECT_LE((ten.log_density(rows(10, 3)) - wanted).abs().max().item<double>(), 1e-2);
}

TEST(Table, AModelNeedsItsRunFolderOnly) {
  const Workshop shop;
  shop.train("run");
  Model before = Model::load(shop.path("run"), torch::kCPU);
  const auto scores = before.log_density(rows());
  const auto samples = before.sample(50, 3);
  fs::remove(shop.table());
  Model after = Model::load(shop.path("run"), torch::kCPU);
  EXPECT_TRUE(torch::equal(after.log_density(rows()), scores));
  EXPECT_TRUE(torch::equal(after.sample(50, 3), samples));
  EXPECT_FALSE(torch::equal(after.sample(50, 4), samples));
  EXPECT_EQ(after.event(), (std::vector<int64_t>{3}));
  EXPECT_THROW(after.log_density(torch::zeros({4, 2})), Error);
  EXPECT_EQ(after.log_density(torch::zeros({0, 3})).size(0), 0);
}

TEST(Table, TinyFilesTrainToo) {
  const Workshop shop;
  // One row is held out of ten: no distance can be measured on it.
  write_csv(shop.table(), {{}, rows().slice(0, 0, 10)});
  EXPECT_EQ(shop.error_of("ten"), "no error");
  // Most rows are equal.
  auto equal = torch::zeros({40, 3}, torch::kDouble);
  equal.slice(0, 0, 4).copy_(rows().slice(0, 0, 4));
  write_csv(shop.table(), {{}, equal});
  EXPECT_EQ(shop.error_of("equal"), "no error");
  write_csv(shop.table(), {{}, rows().slice(0, 0, 1)});
  expect_mentions(shop.error_of("one"), {"1 row", "two at least"});
  write_csv(shop.table(), {{}, torch::ones({9, 3}, torch::kDouble)});
  expect_mentions(shop.error_of("constant"), {"column 1", "one value only"});
}

TEST(Rate, IsConstantOrFallsAlongACosineAfterWarmUp) {
  OptimizerConfig config;
  config.lr = 0.5;
  for (const int64_t i : {0, 1, 99}) EXPECT_EQ(config.rate(i, 100), 0.5);
  config.schedule = RateSchedule::cosine;
  config.lr_end = 0.1;
  EXPECT_DOUBLE_EQ(config.rate(0, 100), 0.5);
  EXPECT_DOUBLE_EQ(config.rate(50, 100), 0.5 * 0.55);
  EXPECT_DOUBLE_EQ(config.rate(100, 100), 0.05);
  EXPECT_DOUBLE_EQ(config.rate(25, 100), 0.5 * (0.1 + 0.45 * (1 + std::sqrt(0.5))));
  config.schedule = RateSchedule::constant;
  config.warmup = 4;
  for (const int64_t i : {0, 1, 2, 3}) EXPECT_DOUBLE_EQ(config.rate(i, 100), 0.125 * (i + 1.0));
  EXPECT_EQ(config.rate(4, 100), 0.5);
}

// Two players with one vector each, and a buffer: all that an optimiser can see of a method.
class Pair : public Method {
 public:
  Pair() {
    for (const char* name : {"first", "second"}) {
      auto net = std::make_shared<torch::nn::Module>();
      net->register_parameter("w", torch::tensor({1.0, -2.0}, torch::kDouble));
      root_.register_module(name, net);
    }
    root_.named_children()["first"]->register_buffer("seen", torch::zeros({1}, torch::kDouble));
  }
  torch::nn::Module& module() override { return root_; }
  const std::vector<Player>& players() const override { return players_; }
  const std::vector<std::string>& loss_names() const override { return names_; }
  torch::Tensor step(const torch::Tensor&, const torch::Tensor&, Random&, const Update&) override {
    return {};
  }
  torch::Tensor log_density(const torch::Tensor&) override { return {}; }
  torch::Tensor sample(int64_t, Random&) override { return {}; }

  torch::Tensor weight(const std::string& player) {
    return root_.named_parameters()[player + ".w"];
  }
  torch::Tensor buffer() { return root_.named_buffers()["first.seen"]; }

 private:
  torch::nn::Module root_;
  std::vector<Player> players_ = {{"a", {"first"}}, {"b", {"second"}}};
  std::vector<std::string> names_;
};

torch::Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const auto& item : optimizer.state()) {
    if (item.name == name) return item.tensor.clone();
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(Optimizer, TakesAdamsStepsForEachPlayerAtItsOwnRate) {
  Pair method;
  OptimizerConfig config;
  config.lr = 0.1;
  config.generator_lr_scale = 0.5;
  config.beta1 = 0.5;
  config.beta2 = 0.75;
  config.eps = 1e-3;
  Optimizer optimizer(method, config);
  double w = 1.0;  // the first entry of the second player
  double m = 0;
  double v = 0;
  for (int64_t i = 0; i < 5; ++i) {
    optimizer.set_iteration(i, 5);
    const auto first = method.weight("first").clone();
    optimizer.update(1, (method.weight("second").pow(3)).sum());
    EXPECT_TRUE(torch::equal(method.weight("first"), first)) << "the other player's";
    const double g = 3 * w * w;
    m = 0.5 * m + 0.5 * g;
    v = 0.75 * v + 0.25 * g * g;
    const double k = static_cast<double>(i + 1);
    w -= 0.05 * (m / (1 - std::pow(0.5, k))) / (std::sqrt(v / (1 - std::pow(0.75, k))) + 1e-3);
    EXPECT_NEAR(method.weight("second")[0].item<double>(), w, 1e-12);
  }
}

TEST(Optimizer, ClipsTheGradientOfAPlayerByItsNorm) {
  for (const double clip : {0.0, 2.0, 100.0}) {
    Pair method;
    OptimizerConfig config;
    config.clip = clip;
    Optimizer optimizer(method, config);
    optimizer.set_iteration(0, 1);
    const auto slope = torch::tensor({3.0, 4.0}, torch::kDouble);  // of norm 5
    optimizer.update(0, (method.weight("first") * slope).sum());
    const double factor = clip == 2.0 ? 0.4 : 1.0;
    // beta1 is 0, so the first moment is the gradient that was used.
    EXPECT_LE((state_of(optimizer, "adam_m.first.w") - factor * slope).abs().max().item<double>(),
              1e-9)
        << clip;
  }
}

TEST(Optimizer, AveragesAreTheWeightsThatWereSeen) {
  for (const double decay : {0.0, 0.8}) {
    Pair method;
    OptimizerConfig config;
    config.lr = 0.1;
    config.ema = decay;
    Optimizer optimizer(method, config);
    auto weight_average = method.weight("first").clone();
    auto buffer_average = method.buffer().clone();
    for (int64_t i = 0; i < 6; ++i) {
      optimizer.set_iteration(i, 6);
      optimizer.update(0, method.weight("first").square().sum());
      method.buffer().add_(1.0);
      optimizer.average_buffers();
      weight_average = decay * weight_average + (1 - decay) * method.weight("first");
      buffer_average = decay * buffer_average + (1 - decay) * method.buffer();
    }
    const auto last = method.weight("first").detach().clone();
    EXPECT_LE((state_of(optimizer, "average.first.w") - weight_average).abs().max().item<double>(),
              1e-14);
    EXPECT_NEAR(state_of(optimizer, "average.first.seen").item<double>(),
                buffer_average.item<double>(), 1e-14);
    if (decay == 0.0) {
      EXPECT_TRUE(torch::equal(state_of(optimizer, "average.first.w"), last));
    }
    {
      const Optimizer::UseAverages averages(optimizer);
      EXPECT_LE((method.weight("first") - weight_average).abs().max().item<double>(), 1e-14);
      EXPECT_NEAR(method.buffer().item<double>(), buffer_average.item<double>(), 1e-14);
    }
    EXPECT_TRUE(torch::equal(method.weight("first"), last)) << "put back";
    EXPECT_EQ(method.buffer().item<double>(), 6.0);
  }
}

TEST(Optimizer, AParameterThatALossDoesNotUseStays) {
  Pair method;
  Optimizer optimizer(method, {});
  optimizer.set_iteration(0, 1);
  const auto before = method.weight("first").clone();
  optimizer.update(0, method.weight("first").sum() * 0 + method.weight("second").sum());
  EXPECT_TRUE(torch::equal(method.weight("first"), before));
}

TEST(Optimizer, StateNamesEveryTensorOnce) {
  Pair method;
  const Optimizer optimizer(method, {});
  std::set<std::string> names;
  for (const auto& item : optimizer.state()) EXPECT_TRUE(names.insert(item.name).second);
  EXPECT_EQ(names, (std::set<std::string>{"weight.first.w", "average.first.w", "adam_m.first.w",
                                          "adam_v.first.w", "weight.second.w", "average.second.w",
                                          "adam_m.second.w", "adam_v.second.w", "weight.first.seen",
                                          "average.first.seen"}));
}

}  // namespace
}  // namespace ddaebm
