#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/data/toy.h"
#include "ddaebm/dist/launch.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/random.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::optional<Place> place(const std::map<std::string, std::string>& variables) {
  return place_of_process([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Place, IsWhatTorchrunSays) {
  const auto p = place({{"RANK", "3"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "node7"},
                        {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 3);
  EXPECT_EQ(p->size, 8);
  EXPECT_EQ(p->local_rank, 1);
  EXPECT_EQ(p->address, "node7");
  EXPECT_EQ(p->port, 1234);
  // torchrun itself sits at that port.
  const auto agent = place({{"RANK", "0"},
                            {"WORLD_SIZE", "2"},
                            {"MASTER_PORT", "1234"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_NE(agent->port, 1234);
}

TEST(Place, IsWhatSrunSays) {
  std::map<std::string, std::string> v = {
      {"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "8"},
      {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "77"},
      {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", "gpu[003-004,9],x1"}};
  const auto p = place(v);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 5);
  EXPECT_EQ(p->size, 8);
  EXPECT_EQ(p->local_rank, 1);
  EXPECT_EQ(p->address, "gpu003");
  v["SLURM_STEP_NODELIST"] = "a,b";
  EXPECT_EQ(place(v)->address, "a");
  v["SLURM_STEP_NODELIST"] = "alone";
  EXPECT_EQ(place(v)->address, "alone");
  // Every task finds the same port, another job another one.
  v["SLURM_PROCID"] = "0";
  EXPECT_EQ(place(v)->port, p->port);
  v["SLURM_JOB_ID"] = "78";
  EXPECT_NE(place(v)->port, p->port);
}

TEST(Place, ABatchScriptOfSlurmIsAlone) {
  EXPECT_FALSE(place({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "77"}}));
  EXPECT_FALSE(place({}));
}

TEST(Place, IsWhatMpirunSays) {
  std::map<std::string, std::string> v = {{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const auto p = place(v);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->rank, 1);
  EXPECT_EQ(p->address, "127.0.0.1");
  v["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_THROW(place(v), Error);
  v["MASTER_ADDR"] = "host";
  EXPECT_EQ(place(v)->address, "host");
}

TEST(Place, ContradictionsAreErrors) {
  EXPECT_THROW(place({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), Error);
  EXPECT_THROW(place({{"RANK", "1"}}), Error);
  EXPECT_THROW(place({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), Error);
  EXPECT_THROW(place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}), Error);
}

TEST(RandomShare, PartsMakeTheJoinedDraw) {
  const auto draw = [](Share share) {
    Random random(torch::kCPU, 5, Random::Generator::own, share);
    random.restart(Random::kTraining, 9);
    const int64_t n = 12 / share.size;
    return std::vector<torch::Tensor>{
        random.normal({n, 3}, torch::kDouble), random.integers(100, {n}),
        random.uniform({n, 1, 2}, torch::kFloat), make_toy("pinwheel")->sample(n, random)};
  };
  const auto whole = draw({0, 1});
  for (const int64_t size : {2, 3, 4}) {
    for (size_t k = 0; k < whole.size(); ++k) {
      std::vector<torch::Tensor> parts;
      for (int64_t rank = 0; rank < size; ++rank) parts.push_back(draw({rank, size})[k]);
      EXPECT_TRUE(torch::equal(torch::cat(parts), whole[k])) << size << " ranks, draw " << k;
    }
  }
}

// A small run in double precision, and what it logged.
struct Together {
  Together() {
    Random random(torch::kCPU, 3);
    write_csv(path("rows.csv"), {{}, random.normal({64, 3}, torch::kDouble)});
    std::ofstream(settings()) << "[data]\nname = \"" << path("rows.csv") << "\""
                              << R"(
[train]
iterations = 30
batch = 16
lr = 1e-3
ema = 0.9
log_every = 1
evaluate_every = 0
evaluation_samples = 1000
checkpoint_every = 10
float64 = true
[net]
branch = [4, 6]
trunk = [8]
embedding = 4
code = 4
norm = "none"
[ranks]
verify_every = 5
)";
  }
  std::string settings() const { return (folder.path() / "tiny.toml").string(); }
  std::string path(const std::string& name) const { return (folder.path() / name).string(); }
  std::vector<std::string> arguments(const std::string& run, int ranks,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"train", settings(), "--quiet", "--out", path(run)};
    if (ranks > 1) all.insert(all.end(), {"--ranks", std::to_string(ranks)});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<Json> lines(const std::string& run) const {
    return read_metrics(fs::path(path(run)) / "metrics.jsonl");
  }
  // Waits until that many lines are logged; false where the program ended before.
  bool wait_for_lines(const App& app, const std::string& run, size_t count) const {
    while (lines(run).size() < count) {
      if (app.ended()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  TempDir folder;
};

// The largest difference of any loss at any iteration.
double largest_difference(const std::vector<Json>& a, const std::vector<Json>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (const auto& [name, value] : a[i].items()) {
      if (name == "seconds" || !value.is_number()) continue;
      // The last line is of an evaluation, in single precision.
      if (!a[i].contains("generator")) continue;
      largest = std::max(largest, std::abs(value.get<double>() - b[i].at(name).get<double>()));
    }
  }
  return largest;
}

TEST(Ranks, GiveTheLossesOfOneProcessOnTheJoinedBatch) {
  const Together t;
  for (const int ranks : {1, 2, 4}) {
    const auto result = run_app(t.arguments(std::to_string(ranks), ranks));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  ASSERT_GE(t.lines("1").size(), 30U);
  EXPECT_LT(largest_difference(t.lines("1"), t.lines("2")), 1e-9);
  EXPECT_LT(largest_difference(t.lines("1"), t.lines("4")), 1e-9);
}

TEST(Ranks, BatchStatisticsAreOfTheJoinedBatchOrLocal) {
  const Together t;
  const std::vector<std::string> norm = {"--set", "net.norm=before"};
  const std::vector<std::string> local = {"--set", "net.norm=before", "--set",
                                          "ranks.batch_statistics=local"};
  ASSERT_EQ(run_app(t.arguments("one", 1, norm)).code, 0);
  const auto synchronised = run_app(t.arguments("synchronised", 2, norm));
  ASSERT_EQ(synchronised.code, 0) << synchronised.err;
  ASSERT_EQ(run_app(t.arguments("local", 2, local)).code, 0);
  EXPECT_LT(largest_difference(t.lines("one"), t.lines("synchronised")), 1e-9);
  EXPECT_GT(largest_difference(t.lines("one"), t.lines("local")), 1e-3);
}

// Two threads of a process would each have a network, and say its sums in an order of their own.
TEST(Ranks, EachOfTwoThreadsSpeakInOneOrder) {
  const Together t;
  const std::vector<std::string> norm = {"--set", "net.norm=before"};
  ASSERT_EQ(run_app(t.arguments("one", 1, norm)).code, 0);
  const auto result = App(t.arguments("two", 2, norm), RLIM_INFINITY, /*threads=*/2).wait();
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_LT(largest_difference(t.lines("one"), t.lines("two")), 1e-9);
}

TEST(Ranks, ARunGoesOnWithAnotherNumberOfThem) {
  const Together t;
  const std::vector<std::string> longer = {"--set", "train.iterations=400"};
  ASSERT_EQ(run_app(t.arguments("undisturbed", 1, longer)).code, 0);
  size_t lines = 20;
  for (const int ranks : {2, 1}) {
    auto all = longer;
    if (ranks == 1) all.emplace_back("--resume");
    App app(t.arguments("run", ranks, all));
    ASSERT_TRUE(t.wait_for_lines(app, "run", lines)) << app.wait().err;
    app.signal(SIGTERM);
    const auto result = app.wait();
    ASSERT_EQ(result.code, 128 + SIGTERM) << result.err;
    EXPECT_NE(result.out.find("--resume"), std::string::npos) << result.out;
    lines = t.lines("run").size() + 20;
    ASSERT_LT(lines, 380U);
  }
  auto all = longer;
  all.emplace_back("--resume");
  ASSERT_EQ(run_app(t.arguments("run", 2, all)).code, 0);
  // What rounds differently in three hundred steps of a game.
  EXPECT_LT(largest_difference(t.lines("undisturbed"), t.lines("run")), 1e-6);
}

// The processes that a process has started.
std::vector<pid_t> children(pid_t parent) {
  const std::string at = "/proc/" + std::to_string(parent);
  std::ifstream list(at + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; list >> child;) found.push_back(child);
  return found;
}

TEST(Ranks, OneThatIsKilledEndsTheOthersAndIsNamed) {
  for (const size_t victim : {0, 1}) {
    const Together t;
    App app(t.arguments("run", 2, {"--set", "train.iterations=100000000"}));
    ASSERT_TRUE(t.wait_for_lines(app, "run", 30));
    const auto ranks = children(app.process());
    ASSERT_EQ(ranks.size(), 2U);
    ::kill(ranks[victim], SIGKILL);
    const auto result = app.wait();
    EXPECT_EQ(result.code, 128 + SIGKILL);
    const std::string named = "rank " + std::to_string(victim);
    EXPECT_NE(result.err.find(named + " of 2 was killed"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(named + " is gone"), std::string::npos) << result.err;
    EXPECT_NE(::kill(ranks[1 - victim], 0), 0) << "the other rank is still there";
    // Nothing is lost.
    const auto resumed = run_app(t.arguments("run", 1,
                                             {"--set", "train.iterations=100000000", "--resume",
                                              "--set", "train.divergence_limit=1e-9"}));
    EXPECT_NE(resumed.err.find("beyond train.divergence_limit"), std::string::npos) << resumed.err;
  }
}

TEST(Ranks, AnErrorOfOneIsToldByAll) {
  const Together t;
  const auto result = run_app(t.arguments("run", 3));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("train.batch = 16 cannot be shared by 3 ranks"), std::string::npos);
}

}  // namespace
}  // namespace ddaebm
