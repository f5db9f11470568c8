// `ddaebm compare` and `reproduce` as a user meets them.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/io/file.h"
#include "ddaebm/io/markup.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class Compare : public ::testing::Test {
 protected:
  std::vector<std::string> command(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"compare",      "8gaussians", "--out",
                                    out().string(), "--set",      "train.evaluation_samples=1000"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path out() const { return folder_.path() / "out"; }
  json comparison() const { return json::parse(read_file(out() / "comparison.json")); }
  TempDir folder_;
};

TEST_F(Compare, TrainsEachWithEachSeedAndShowsThem) {
  const auto result = run_app(
      command({"--variant", "small: net.trunk=[8] net.branch=[4,6]", "--variant",
               "no latent: game.latent=false net.trunk=[8]", "--budget", "4", "--seeds", "2"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("| small |"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("±"), std::string::npos) << "spread over seeds";
  const auto numbers = comparison();
  EXPECT_EQ(numbers["small"]["seeds"], 2);
  EXPECT_EQ(numbers["no latent"]["iterations"], 4);
  EXPECT_TRUE(fs::exists(out() / "no_latent" / "seed-1" / "evaluation.json"));
  EXPECT_NE(read_file(out() / "no_latent" / "seed-0" / "config.toml").find("latent = false"),
            std::string::npos);
  const std::string figure = read_file(out() / "figure.svg");
  EXPECT_NE(figure.find(">no latent<"), std::string::npos);
  EXPECT_NE(figure.find("data:image/png;base64,"), std::string::npos);
}

TEST_F(Compare, VariesAnyMethodThatIsNamed) {
  const auto result =
      run_app(command({"--variants-of", "dsm", "--variant",
                       "wide: score.sigma=0.3 net.energy_hidden=[8]", "--budget", "4"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string config = read_file(out() / "wide" / "seed-0" / "config.toml");
  EXPECT_NE(config.find("method = \"dsm\""), std::string::npos) << config;
  EXPECT_NE(config.find("sigma = 0.3"), std::string::npos) << config;
}

TEST_F(Compare, KeepsWhatIsFinished) {
  const std::vector<std::string> once = {"--variant", "small: net.trunk=[8]", "--budget", "4"};
  ASSERT_EQ(run_app(command(once)).code, 0);
  const auto before = snapshot(out() / "small");
  auto more = once;
  more.insert(more.begin(), {"--variant", "other: net.trunk=[9]"});
  const auto result = run_app(command(more));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("small: finished before"), std::string::npos) << result.err;
  EXPECT_EQ(snapshot(out() / "small"), before);
  EXPECT_EQ(comparison().size(), 2U);
}

TEST_F(Compare, WhatWasTrainedWithOtherSettingsIsNotTakenForFinished) {
  ASSERT_EQ(run_app(command({"--variant", "small: net.trunk=[8]", "--budget", "4"})).code, 0);
  const auto result = run_app(
      command({"--variant", "small: net.trunk=[8]", "--budget", "4", "--set", "game.gamma=0.5"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("game.gamma"), std::string::npos) << result.err;
}

TEST_F(Compare, LabelsThatWouldShareAFolderAreRefused) {
  const auto result = run_app(command(
      {"--variant", "T 1: net.trunk=[8]", "--variant", "T=1: net.trunk=[9]", "--budget", "4"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("'T 1' and 'T=1'"), std::string::npos) << result.err;
}

TEST_F(Compare, AMethodThatCannotTakeTheDataIsARowWithoutNumbers) {
  write_file(folder_.path() / "odd.csv", "1,2,3\n4,5,7\n2,2,1\n0,1,5\n3,4,4\n9,1,0\n");
  const auto result =
      run_app({"compare", (folder_.path() / "odd.csv").string(), "--methods", "mle,wgan0gp",
               "--budget", "2", "--seeds", "2", "--out", out().string(), "--set",
               "train.evaluation_samples=1000", "--set", "train.batch=4"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(comparison()["mle"]["seeds"], 0);
  EXPECT_NE(comparison()["mle"]["failures"].dump().find("odd number"), std::string::npos);
  EXPECT_EQ(comparison()["wgan0gp"]["seeds"], 2);
}

TEST_F(Compare, OneThatDivergesDoesNotStopTheOthers) {
  const auto result =
      run_app(command({"--variant", "wild: net.trunk=[8] train.divergence_limit=1e-9", "--variant",
                       "tame: net.trunk=[8]", "--budget", "4"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(comparison()["wild"]["seeds"], 0);
  EXPECT_NE(comparison()["wild"]["failures"].dump().find("divergence_limit"), std::string::npos);
  EXPECT_EQ(comparison()["tame"]["seeds"], 1);
}

TEST_F(Compare, BadWordsAreNamed) {
  const auto complaint = [&](const std::vector<std::string>& more) {
    const auto result = run_app(command(more));
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_NE(complaint({"--methods", "nosuch"}).find("nosuch"), std::string::npos);
  EXPECT_NE(complaint({"--methods", "ddaebm", "--budget", "3 weeks"}).find("20000"),
            std::string::npos);
  EXPECT_NE(complaint({"--variant", "nameless"}).find("a colon"), std::string::npos);
}

TEST_F(Compare, ABudgetOfMinutesBecomesIterations) {
  const auto result = run_app(command({"--variant", "small: net.trunk=[8]", "--budget", "0.01m"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GT(comparison()["small"]["iterations"], 1);
  EXPECT_EQ(run_app(command({"--variant", "small: net.trunk=[8]", "--budget", "1m"})).code, 2)
      << "what was begun with another budget is not taken for it";
  EXPECT_FALSE(fs::exists(out() / "small" / ".timing"));
}

// What a comparison found, without the time it took.
json without_seconds(json comparison) {
  for (auto& row : comparison) row.erase("seconds");
  return comparison;
}

TEST_F(Compare, JobsFindWhatOneProcessFinds) {
  const std::vector<std::string> three = {
      "--variant", "small: net.trunk=[8]",
      "--variant", "wild: net.trunk=[8] train.divergence_limit=1e-9",
      "--variant", "other: net.trunk=[9]",
      "--budget",  "30"};
  ASSERT_EQ(run_app(command(three)).code, 0);
  const auto alone = comparison();
  fs::remove_all(out());
  auto shared = three;
  shared.insert(shared.end(), {"--jobs", "2"});
  const auto result = run_app(command(shared));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(without_seconds(comparison()), without_seconds(alone));
  EXPECT_NE(result.out.find("| small |"), std::string::npos) << "said once all have ended";
  EXPECT_EQ(result.err.find("small: "), std::string::npos) << "left for this process:\n"
                                                           << result.err;
  EXPECT_NE(result.err.find("wild: "), std::string::npos) << result.err;
  EXPECT_TRUE(fs::exists(out() / "figure.svg"));
  for (const auto& [file, text] : snapshot(out())) {
    EXPECT_EQ(file.find(".lock"), std::string::npos) << file;
  }
}

TEST_F(Compare, JobsTryAgainWhatFailedBefore) {
  const std::vector<std::string> wild = {
      "--variant", "wild: net.trunk=[8] train.divergence_limit=1e-9", "--budget", "4", "--jobs",
      "2"};
  ASSERT_EQ(run_app(command(wild)).code, 0);
  ASSERT_EQ(comparison()["wild"]["seeds"], 0);
  fs::remove_all(out() / "wild" / "seed-0");
  // As a job that was killed would leave it, with a reason that is gone.
  write_file(out() / "wild" / "failures.json", "[\"gone\"]\n");
  const auto result = run_app(command(wild));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("gone"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("divergence_limit"), std::string::npos) << result.err;
}

TEST_F(Compare, JobsThatAreStoppedGoOn) {
  std::vector<std::string> two = {"--variant", "small: net.trunk=[8]",
                                  "--variant", "other: net.trunk=[9]",
                                  "--budget",  "1500",
                                  "--jobs",    "2"};
  {
    App app(command(two));
    // Both are at work.
    while (!app.ended() && !(fs::exists(out() / "small" / "seed-0" / "metrics.jsonl") &&
                             fs::exists(out() / "other" / "seed-0" / "metrics.jsonl"))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    app.signal(SIGTERM);
    const auto result = app.wait();
    ASSERT_EQ(result.code, 128 + SIGTERM) << result.err;
    EXPECT_NE(result.out.find("the same command goes on"), std::string::npos) << result.out;
  }
  EXPECT_FALSE(fs::exists(out() / "table.md"));
  const auto result = run_app(command(two));
  ASSERT_EQ(result.code, 0) << result.err;
  const auto shared = comparison();
  fs::remove_all(out());
  two.resize(two.size() - 2);
  ASSERT_EQ(run_app(command(two)).code, 0);
  EXPECT_EQ(without_seconds(shared), without_seconds(comparison()));
}

TEST_F(Compare, AJobThatIsKilledHoldsUpNoOther) {
  const std::vector<std::string> two = {"--variant", "small: net.trunk=[8]",
                                        "--variant", "other: net.trunk=[9]",
                                        "--budget",  "1000",
                                        "--jobs",    "2"};
  App app(command(two));
  const fs::path cell = out() / "small";
  while (!app.ended() && !fs::exists(cell / "seed-0" / "metrics.jsonl")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_FALSE(app.ended());
  // Who has a folder is said in its lock.
  ASSERT_EQ(::kill(std::stoi(read_file(cell / ".lock")), SIGKILL), 0);
  const auto killed = app.wait();
  ASSERT_EQ(killed.code, 0) << killed.err;
  EXPECT_NE(killed.err.find("was killed by signal 9"), std::string::npos) << killed.err;
  EXPECT_NE(killed.err.find("small: the job that trained it was killed"), std::string::npos)
      << killed.err;
  EXPECT_EQ(comparison()["small"]["seeds"], 0);
  EXPECT_EQ(comparison()["other"]["seeds"], 1);

  const auto again = run_app(command(two));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(comparison()["small"]["seeds"], 1);
}

TEST_F(Compare, JobsAreNotStartedForWhatDoesNotFit) {
  ASSERT_EQ(run_app(command({"--variant", "small: net.trunk=[8]", "--budget", "4"})).code, 0);
  const auto result = run_app(command({"--variant", "new: net.trunk=[7]", "--variant",
                                       "small: net.trunk=[9]", "--budget", "4", "--jobs", "2"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("net.trunk"), std::string::npos) << result.err;
  EXPECT_FALSE(fs::exists(out() / "new"));
}

TEST(Reproduce, ListsWhatThereIsAndWhatItNeeds) {
  const auto result = run_app({"reproduce", "--list"});
  ASSERT_EQ(result.code, 0);
  for (const char* name : {"fig-toy", "table-nice", "fig-nice", "fig-density", "fig-swissroll",
                           "table-modes", "table-cifar10", "table-celeba", "table-ood",
                           "fig-energy", "table-ablation", "fig-steps"}) {
    EXPECT_NE(result.out.find(name), std::string::npos) << name;
  }
  EXPECT_EQ(run_app({"reproduce", "fig-nonsense"}).code, 2);
  EXPECT_EQ(run_app({"reproduce", "fig-toy", "--budget", "7"}).code, 2);
}

TEST(Reproduce, WritesAPageWithAFigure) {
  TempDir folder;
  const auto result =
      run_app({"reproduce", "fig-swissroll", "--budget", "0.00001", "--out", folder.path().string(),
               "--set", "train.evaluation_samples=1000", "--jobs", "2"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = read_file(folder.path() / "budget-0.00001" / "fig-swissroll.md");
  EXPECT_NE(page.find("1e-05 of the full iterations"), std::string::npos) << page;
  EXPECT_NE(page.find("DDAEBM (KL)"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder.path() / "budget-0.00001" / "fig-swissroll-swissroll.svg"));
}

TEST(Markup, Base64HasItsPadding) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

}  // namespace
}  // namespace ddaebm
