// `ddaebm compare` and `reproduce` as a user meets them.

#include <filesystem>

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
  EXPECT_FALSE(fs::exists(out() / ".timing"));
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
  const auto result = run_app({"reproduce", "fig-swissroll", "--budget", "0.00001", "--out",
                               folder.path().string(), "--set", "train.evaluation_samples=1000"});
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
