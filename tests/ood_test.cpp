// Telling data like the model's own from other data: intervals, thresholds, pictures, and
// `ddaebm ood` as a user meets it.

#include "ddaebm/train/ood.h"

#include <cmath>
#include <random>

#include "image_fixtures.h"
#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/histogram.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

using Scores = std::vector<double>;

Scores normal_scores(size_t n, double mean, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(mean, 1);
  Scores scores(n);
  for (double& score : scores) score = normal(engine);
  return scores;
}

// By the definition, pair by pair.
double pairwise_auroc(const Scores& inside, const Scores& outside) {
  double above = 0;
  for (const double a : inside) {
    for (const double b : outside) above += a > b ? 1 : a == b ? 0.5 : 0;
  }
  return above / static_cast<double>(inside.size() * outside.size());
}

TEST(Separation, HasTheExactNumbersOfTheRanking) {
  std::mt19937 engine(3);
  for (int round = 0; round < 20; ++round) {
    Scores inside(200 + engine() % 200);
    Scores outside(200 + engine() % 200);
    const unsigned values = 3 + engine() % 100;  // few values: many ties
    for (double& score : inside) score = 0.1 * (engine() % values + 2);
    for (double& score : outside) score = 0.1 * (engine() % values);
    const auto found = separation(inside, outside, {.resamples = 5});
    EXPECT_NEAR(found.auroc.value, pairwise_auroc(inside, outside), 1e-12);
    EXPECT_EQ(found.average_precision.value, average_precision(inside, outside));
    EXPECT_EQ(found.false_positive_rate.value, false_positive_rate(inside, outside));
  }
}

TEST(Separation, IntervalsAreAsWideAsTheNumbersScatter) {
  // AUROC of two unit Gaussians a distance of 1 apart is Phi(1 / sqrt 2).
  const double truth = 0.5 * std::erfc(-0.5);
  int held = 0;
  double width = 0;
  double sum = 0;
  double squares = 0;
  constexpr int kRounds = 200;
  for (int round = 0; round < kRounds; ++round) {
    const auto seed = static_cast<uint64_t>(2 * round);
    const auto found = separation(normal_scores(150, 1, seed), normal_scores(100, 0, seed + 1),
                                  {.resamples = 200, .seed = seed});
    const auto& a = found.auroc;
    EXPECT_LT(a.low, a.value);
    EXPECT_GT(a.high, a.value);
    held += a.low <= truth && truth <= a.high;
    width += (a.high - a.low) / kRounds;
    sum += a.value;
    squares += a.value * a.value;
  }
  EXPECT_NEAR(held / static_cast<double>(kRounds), 0.95, 0.04);
  const double deviation = std::sqrt(squares / kRounds - sum * sum / kRounds / kRounds);
  EXPECT_NEAR(width / (2 * 1.96 * deviation), 1, 0.15);
}

TEST(Separation, ASeedGivesTheSameIntervals) {
  const auto inside = normal_scores(50, 1, 1);
  const auto outside = normal_scores(40, 0, 2);
  const auto once = separation(inside, outside, {.resamples = 100, .seed = 7});
  const auto again = separation(inside, outside, {.resamples = 100, .seed = 7});
  const auto other = separation(inside, outside, {.resamples = 100, .seed = 8});
  EXPECT_EQ(once.auroc.low, again.auroc.low);
  EXPECT_EQ(once.false_positive_rate.high, again.false_positive_rate.high);
  EXPECT_NE(once.auroc.low, other.auroc.low);
  const auto apart = separation(Scores{3, 4, 5}, Scores{0, 1}, {.resamples = 50});
  EXPECT_EQ(apart.auroc.low, 1);
  EXPECT_EQ(apart.false_positive_rate.high, 0);
}

TEST(Separation, RefusesWhatHasNoInterval) {
  const Scores some = {1, 2, 3};
  EXPECT_THROW(separation(Scores{}, some), Error);
  EXPECT_THROW(separation(some, Scores{1}), Error);
  EXPECT_THROW(separation(some, Scores{1, std::nan("")}), Error);
  EXPECT_THROW(separation(some, some, {.resamples = 0}), Error);
  EXPECT_THROW(separation(some, some, {.coverage = 1}), Error);
}

TEST(TellApart, FindsSetsThatScoreTooHighByTheirDistanceFromTheMedian) {
  const ScoredSet inside{"in", normal_scores(1001, 5, 1), {}, {}};
  const ScoredSet above{"above", normal_scores(400, 9, 2), {}, {}};
  const auto row = tell_apart(inside, {above}, {.resamples = 5}).at(0);
  EXPECT_LT(row.clean.auroc.value, 0.02);
  Scores near = inside.clean;
  Scores far = above.clean;
  std::sort(near.begin(), near.end());
  const double median = near[500];
  for (Scores* scores : {&near, &far}) {
    for (double& score : *scores) score = -std::abs(score - median);
  }
  EXPECT_NEAR(row.typical.auroc.value, pairwise_auroc(near, far), 1e-12);
  EXPECT_GT(row.typical.auroc.value, 0.95);
}

TEST(UsualProfiles, ScoreByTheDistanceThatTheReferenceMakesUsual) {
  Random random(torch::kCPU, 4);
  const auto mixing =
      torch::tensor({{2.0, 0.0, 0.0}, {1.9, 0.3, 0.0}, {0.0, 0.0, 50.0}}, torch::kDouble);
  const auto mean = torch::tensor({5.0, -3.0, 1000.0}, torch::kDouble);
  const auto learnt = random.normal({5000, 3}, torch::kDouble);
  const UsualProfiles usual(learnt.mm(mixing.t()) + mean);
  const auto normal = torch::tensor(
      {{0.0, 0.0, 0.0}, {1.0, 0.0, 0.0}, {0.0, 3.0, 0.0}, {1.0, -2.0, 2.0}}, torch::kDouble);
  const auto scores = usual.scores(normal.mm(mixing.t()) + mean);
  // Of three numbers, the twentieth.
  const auto wanted = -std::get<0>(torch::cdist(normal, learnt).kthvalue(20, 1)).log();
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_NEAR(scores[i], wanted[static_cast<int64_t>(i)].item<double>(), 0.05) << i;
  }
  // Each column alone is usual here; together they are not.
  EXPECT_LT(usual.scores(mean.unsqueeze(0) + torch::tensor({{2.0, -2.0, 0.0}}, torch::kDouble))[0],
            -2.3);
}

// Of a ring the middle is nearest to the mean, and no datum lies there.
TEST(UsualProfiles, SeeWhereNothingOfTheReferenceLies) {
  Random random(torch::kCPU, 4);
  const auto angle = 6.283185307 * random.uniform({500, 1}, torch::kDouble);
  const auto ring = torch::cat({angle.cos(), angle.sin()}, 1);
  const auto of = [&](const torch::Tensor& learnt) {
    return UsualProfiles(learnt).scores(torch::tensor({{0.6, 0.0}, {1.0, 0.0}}, torch::kDouble));
  };
  EXPECT_LT(of(ring)[0], of(ring)[1] - 0.5);
  // One stray datum there does not make it usual; twenty do.
  const auto strays = 0.6 + 1e-3 * torch::arange(20, torch::kDouble).unsqueeze(1);
  const auto stray = torch::cat({strays, torch::zeros({20, 1}, torch::kDouble)}, 1);
  EXPECT_LT(of(torch::cat({ring, stray.slice(0, 0, 1)}))[0], of(ring)[1] - 0.5);
  EXPECT_GT(of(torch::cat({ring, stray}))[0], of(ring)[1]);
}

TEST(UsualProfiles, TakeColumnsThatFollowFromOthersAndRefuseTooFewRows) {
  Random random(torch::kCPU, 4);
  const auto one = random.normal({100, 1}, torch::kDouble);
  const auto same = torch::cat({one, one}, 1);
  const UsualProfiles usual(torch::cat({same, torch::ones({100, 1}, torch::kDouble)}, 1));
  const auto scores =
      usual.scores(torch::tensor({{0.0, 0.0, 1.0}, {0.5, -0.5, 1.0}}, torch::kDouble));
  EXPECT_GT(scores[0], 1);
  EXPECT_LT(scores[1], -6) << "hundreds of deviations from each";
  EXPECT_THROW(UsualProfiles(one.slice(0, 0, 9)), Error);
  EXPECT_THROW(UsualProfiles(one / 0), Error);
}

TEST(UsualProfiles, AreKeptInAFile) {
  const TempDir folder;
  const auto file = folder.path() / "usual.safetensors";
  Random random(torch::kCPU, 4);
  const UsualProfiles usual(random.normal({100, 3}, torch::kDouble));
  usual.save(file);
  const auto x = random.normal({5, 3}, torch::kDouble);
  EXPECT_EQ(UsualProfiles::load(file).scores(x), usual.scores(x));
  EXPECT_THROW(usual.scores(x.slice(1, 0, 2)), Error);
  EXPECT_THROW(UsualProfiles::load(folder.path() / "none"), Error);
  const auto kept = read_safetensors(file);
  const auto with = [&](const char* name, const torch::Tensor& tensor) {
    auto changed = kept;
    changed.tensors[name] = tensor;
    write_safetensors(file, changed);
    return file;
  };
  const auto wide = torch::zeros({3, 2}, torch::kDouble);
  EXPECT_THROW(UsualProfiles::load(with("whiten", wide)), Error) << "too narrow";
  EXPECT_THROW(UsualProfiles::load(with("learnt", wide)), Error) << "not float32";
  EXPECT_THROW(UsualProfiles::load(with("learnt", wide.to(torch::kFloat))), Error) << "too narrow";
}

TEST(FalseAlarm, ThresholdCallsNoMoreThanItsShareOut) {
  std::mt19937 engine(5);
  for (const double rate : {0.0, 0.01, 0.05, 0.5, 0.9}) {
    Scores inside(1 + engine() % 300);
    for (double& score : inside) score = engine() % 50;  // with ties
    const double threshold = false_alarm_threshold(inside, rate);
    const auto below = [&](double limit) {
      return std::count_if(inside.begin(), inside.end(), [&](double s) { return s < limit; }) /
             static_cast<double>(inside.size());
    };
    EXPECT_LE(below(threshold), rate);
    EXPECT_GT(below(std::nextafter(threshold, 1e9)), rate) << "no higher one will do";
  }
  EXPECT_THROW(false_alarm_threshold(Scores{}, 0.1), Error);
  EXPECT_THROW(false_alarm_threshold(Scores{1, std::nan("")}, 0.1), Error);
  EXPECT_THROW(false_alarm_threshold(Scores{1}, 1), Error);
}

// Share of a picture's pixels that have this colour.
double share_of(const torch::Tensor& picture, const std::vector<int>& colour) {
  const auto wanted = torch::tensor(colour, torch::kUInt8);
  return (picture == wanted).all(2).to(torch::kDouble).mean().item<double>();
}

TEST(Histograms, FillTheFirstSetAndLineTheOthers) {
  const auto picture =
      histograms({{"in", normal_scores(1000, 5, 1)}, {"out (0.5%)", normal_scores(1000, -5, 2)}});
  ASSERT_EQ(picture.size(2), 3);
  EXPECT_EQ(picture.scalar_type(), torch::kUInt8);
  const std::vector<int> fill = {156, 200, 226};
  const std::vector<int> line = {213, 94, 0};
  EXPECT_GT(share_of(picture, fill), 0.02);
  EXPECT_GT(share_of(picture, line), 0.002);
  const int64_t middle = picture.size(1) / 2;
  const auto plot = picture.slice(0, 100);
  EXPECT_EQ(share_of(plot.slice(1, 0, middle - 50), fill), 0) << "lower scores lie on the left";
  EXPECT_GT(share_of(plot.slice(1, middle), fill), 0.02);
}

TEST(Histograms, TakeAnyNumbers) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_NO_THROW(histograms({{"", {}}, {"x", {std::nan(""), inf, -inf}}}));
  EXPECT_NO_THROW(histograms({{"one", {1e300}}, {"same", {1e300, 1e300}}}));
  EXPECT_NO_THROW(histograms({{"zero", {0, 0}}, {"\xc3\xa9", {0}}}));
  EXPECT_NO_THROW(histograms({{"far", {-1e30, 1e30}}}));
}

// ---- The command ----

constexpr const char* kTiny = R"(
[data]
name = "moons"
[diffusion]
beta_max = 2.5
[train]
iterations = 300
batch = 64
lr = 0.002
log_every = 100
evaluate_every = 0
evaluation_samples = 1000
[net]
branch = [8, 16]
trunk = [32, 32]
[game]
gamma = 0.002
reference_std = 1.5
)";

class Ood : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    write_file(path("tiny.toml"), kTiny);
    const auto result = run_app({"train", path("tiny.toml"), "--quiet", "--out", path("run")});
    ASSERT_EQ(result.code, 0) << result.err;
    Random random(torch::kCPU, 9);
    write_csv(path("far.csv"), {{}, 0.1 * random.normal({300, 2}, torch::kDouble) + 30});
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string path(const std::string& name) { return (folder_->path() / name).string(); }
  static nlohmann::json read_json(const std::string& name) {
    return nlohmann::json::parse(read_file(path(name)));
  }
  static void expect_refused(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& parts) {
    const auto before = snapshot(folder_->path());
    const auto result = run_app(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    for (const auto& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    }
    EXPECT_TRUE(snapshot(folder_->path()) == before) << "files changed";
  }

  static TempDir* folder_;
};
TempDir* Ood::folder_ = nullptr;

TEST_F(Ood, WritesATableAPictureAndASection) {
  const auto result = run_app({"ood", path("run"), "--in", "moons", "--out", path("far.csv"),
                               "--out", "rings", "-n", "250", "--resamples", "50"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* part : {"AUROC", "FPR at 95 % TPR", "far.csv", "rings", "clean", "noised"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out;
  }
  const auto json = read_json("run/ood.json");
  EXPECT_EQ(json.at("in"), "moons");
  EXPECT_EQ(json.at("in_count"), 250);
  EXPECT_EQ(json.at("iteration"), 300);
  ASSERT_EQ(json.at("out").size(), 2U);
  const auto& far = json.at("out")[0];
  EXPECT_EQ(far.at("count"), 250);
  EXPECT_EQ(far.at("clean").at("auroc").at("value"), 1.0) << "the reference falls off far away";
  EXPECT_EQ(far.at("noised").at("fpr95").at("value"), 0.0);
  const auto& rings = json.at("out")[1].at("clean").at("auroc");
  EXPECT_LT(rings.at("low"), rings.at("value"));
  EXPECT_NO_THROW(read_png(path("run/ood.png")));
  const std::string report = read_file(path("run/report.html"));
  EXPECT_NE(report.find("Other data"), std::string::npos);
  EXPECT_NE(report.find("far.csv"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path("run/threshold.json")));

  // The numbers are those of the scores that `score` writes.
  ASSERT_EQ(run_app({"score", path("run"), path("far.csv"), "-o", path("far.npy")}).code, 0);
  Model model = Model::load(path("run"), torch::kCPU);
  Random random(torch::kCPU, 0);
  const auto inside = model.log_density(make_toy("moons")->sample(250, random));
  Random rings_random(torch::kCPU, 2);
  const auto outside = model.log_density(make_toy("rings")->sample(250, rings_random));
  const auto numbers = [](const torch::Tensor& t) {
    return Scores(t.data_ptr<double>(), t.data_ptr<double>() + t.numel());
  };
  EXPECT_NEAR(rings.at("value"), pairwise_auroc(numbers(inside), numbers(outside)), 1e-3);
}

TEST_F(Ood, AReferenceAddsTheProfileOfAllTimes) {
  std::filesystem::copy(path("run"), path("profiled"), std::filesystem::copy_options::recursive);
  const std::vector<std::string> command = {
      "ood",   path("profiled"), "--in", "moons", "--out",       path("far.csv"),
      "--out", "moons",          "-n",   "250",   "--resamples", "10"};
  auto with = command;
  with.insert(with.end(), {"--reference", "moons"});
  const auto result = run_app(with);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("profile"), std::string::npos);
  const auto json = read_json("profiled/ood.json");
  EXPECT_EQ(json.at("reference"), "moons");
  EXPECT_GT(json.at("out")[0].at("profile").at("auroc").at("value"), 0.99);
  EXPECT_NEAR(json.at("out")[1].at("profile").at("auroc").at("value"), 0.5, 0.1) << "the same data";
  EXPECT_NE(read_file(path("profiled/report.html")).find("<td>profile"), std::string::npos);
  ASSERT_EQ(run_app(command).code, 0);
  EXPECT_FALSE(read_json("profiled/ood.json").at("out")[0].contains("profile"));
  write_file(path("few.csv"), "1,2\n3,4\n");
  with.back() = path("few.csv");
  expect_refused(with, {"2 data to learn", "50"});
}

TEST_F(Ood, AProfileIsTheEnergyOfAllTimesAndTheSlope) {
  Model model = Model::load(path("run"), torch::kCPU);
  Random random(torch::kCPU, 2);
  const auto x = random.normal({1100, 2}, torch::kDouble);  // more than go through at once
  const auto profiles = energy_profiles(model, x);
  ASSERT_EQ(profiles.sizes(), (std::vector<int64_t>{1100, model.times() + 1}));
  for (int64_t t = 0; t < model.times(); ++t) {
    EXPECT_TRUE(torch::allclose(profiles.select(1, t), model.log_density_at(x, t), 1e-5, 1e-5));
  }
  const auto slope = model.log_density_and_gradient(x, 0).gradient.norm(2, 1);
  EXPECT_TRUE(torch::allclose(profiles.select(1, model.times()).exp(), slope, 1e-5));
}

TEST_F(Ood, AThresholdLetsScoreAnswer) {
  std::filesystem::copy(path("run"), path("answers"), std::filesystem::copy_options::recursive);
  const std::vector<std::string> score = {"score", path("answers"), path("far.csv"), "-o",
                                          path("answers.csv")};
  ASSERT_EQ(run_app(score).code, 0);
  EXPECT_EQ(read_file(path("answers.csv")).rfind("log_density\n", 0), 0U) << "no threshold yet";
  ASSERT_EQ(run_app({"ood", path("answers"), "--in", "moons", "--out", path("far.csv"), "-n", "200",
                     "--resamples", "10", "--false-alarm", "0.1"})
                .code,
            0);
  const auto kept = read_json("answers/threshold.json");
  EXPECT_EQ(kept.at("false_alarm"), 0.1);
  ASSERT_EQ(run_app(score).code, 0);
  const std::string far = read_file(path("answers.csv"));
  EXPECT_EQ(far.rfind("log_density,answer\n", 0), 0U) << far.substr(0, 60);
  EXPECT_EQ(far.find(",in\n"), std::string::npos);
  // Of the data that gave the threshold, a tenth is out.
  ASSERT_EQ(run_app({"score", path("answers"), "moons", "-n", "200", "-o", path("moons.csv")}).code,
            0);
  const std::string moons = read_file(path("moons.csv"));
  size_t out = 0;
  for (size_t at = moons.find(",out\n"); at != moons.npos; at = moons.find(",out\n", at + 1)) ++out;
  EXPECT_EQ(out, 20U);

  auto stale = kept;
  stale["iteration"] = 299;
  write_file(path("answers/threshold.json"), stale.dump());
  expect_refused(score, {"threshold.json", "iteration 299", "--false-alarm"});
  write_file(path("answers/threshold.json"), "{");
  expect_refused(score, {"threshold.json", "--false-alarm"});
}

TEST_F(Ood, WithAReferenceScoreAnswersByTheProfile) {
  std::filesystem::copy(path("run"), path("usual"), std::filesystem::copy_options::recursive);
  const auto learn = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {
        "ood", path("usual"), "--in",        "moons", "--out",         path("far.csv"),
        "-n",  "200",         "--resamples", "10",    "--false-alarm", "0.1"};
    command.insert(command.end(), more.begin(), more.end());
    return run_app(command);
  };
  const auto rows_kept = [&] {
    return read_safetensors(path("usual/usual.safetensors")).tensors.at("learnt").size(0);
  };
  ASSERT_EQ(learn({"--reference", "moons", "--learn", "120"}).code, 0);
  EXPECT_EQ(rows_kept(), 120);
  const auto learnt = learn({"--reference", "moons"});
  ASSERT_EQ(learnt.code, 0) << learnt.err;
  EXPECT_EQ(rows_kept(), 10000);
  EXPECT_NE(learnt.out.find("of the profile"), std::string::npos) << learnt.out;
  const std::vector<std::string> score = {"score", path("usual"), path("far.csv"), "-o",
                                          path("usual.csv")};
  ASSERT_EQ(run_app(score).code, 0);
  const std::string far = read_file(path("usual.csv"));
  EXPECT_EQ(far.rfind("log_density,profile,answer\n", 0), 0U) << far.substr(0, 60);
  EXPECT_EQ(far.find(",in\n"), std::string::npos);
  // Of the data that gave the threshold, a tenth is out.
  const std::vector<std::string> moons = {"score", path("usual"), "moons",          "-n",
                                          "200",   "-o",          path("usual.csv")};
  ASSERT_EQ(run_app(moons).code, 0);
  const std::string text = read_file(path("usual.csv"));
  size_t out = 0;
  for (size_t at = text.find(",out\n"); at != text.npos; at = text.find(",out\n", at + 1)) ++out;
  EXPECT_EQ(out, 20U);

  write_file(path("usual/usual.safetensors"), "no");
  expect_refused(score, {"usual.safetensors", "--reference"});
  // Neither does what is usual come from the data that it is to be tried on.
  expect_refused({"ood", path("usual"), "--in", path("far.csv"), "--out", "moons", "--reference",
                  path("far.csv")},
                 {"--reference", "--in"});
  // Without a reference the log-density answers again.
  ASSERT_EQ(learn({}).code, 0);
  ASSERT_EQ(run_app(score).code, 0);
  EXPECT_EQ(read_file(path("usual.csv")).rfind("log_density,answer\n", 0), 0U);
}

TEST_F(Ood, BadInputIsRefused) {
  const auto against = [&](const std::string& name, const std::string& text) {
    write_file(path(name), text);
    return std::vector<std::string>{"ood", path("run"), "--in", "moons", "--out", path(name)};
  };
  expect_refused({"ood", path("run"), "--in", "moons"}, {"--out"});
  expect_refused({"ood", path("none"), "--in", "moons", "--out", "rings"}, {"not a run folder"});
  expect_refused(against("empty.csv", ""), {path("empty.csv")});
  expect_refused(against("one.csv", "1,2\n"), {path("one.csv"), "two of each at least"});
  expect_refused(against("nan.csv", "1,2\nnan,1\n"), {path("nan.csv"), "row 2"});
  expect_refused(against("wide.csv", "1,2,3\n4,5,6\n"), {path("wide.csv"), "3 columns"});
  expect_refused({"ood", path("run"), "--in", "moons", "--out", "rings", "--false-alarm", "1"},
                 {"--false-alarm"});
}

// Images of any size and format, against a model that is as small as they come.
TEST(OodImages, AreBroughtToTheModelsSize) {
  const TempDir folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  std::filesystem::create_directory(path("gallery"));
  write_folder(path("gallery"), numbered_pngs(12, 16, 16));
  std::filesystem::create_directory(path("wide"));
  write_folder(path("wide"), numbered_pngs(5, 20, 31));
  std::string records;
  for (int i = 0; i < 4; ++i) {
    records += static_cast<char>(i);
    for (int p = 0; p < 3072; ++p) records += static_cast<char>((p * 7 + i * 50) % 256);
  }
  put_file(path("digits.bin"), records);
  write_file(path("tiny.toml"), R"(
[data]
size = 16
[image_net]
channels = 4
multipliers = [1, 2]
blocks = 1
energy_blocks = 1
attention = [8]
latent = 3
latent_width = 6
latent_layers = 1
encoder_width = 2
encoder_time = 4
[train]
batch = 4
iterations = 1
evaluate_every = 0
evaluation_samples = 1000
)");
  const auto trained = run_app({"train", path("tiny.toml"), "--quiet", "--out", path("run"),
                                "--set", "data.name=" + path("gallery")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const auto result = run_app({"ood", path("run"), "--in", path("gallery"), "--out",
                               path("digits.bin"), "--out", path("wide"), "--resamples", "20"});
  ASSERT_EQ(result.code, 0) << result.err;
  const auto json = nlohmann::json::parse(read_file(path("run/ood.json")));
  EXPECT_EQ(json.at("in_count"), 12);
  EXPECT_EQ(json.at("out")[0].at("count"), 4);
  EXPECT_EQ(json.at("out")[1].at("count"), 5);

  // An image's slope comes in octaves, whose squares add up to the whole: a pixel of the l-th
  // stands for 4^l.
  Model model = Model::load(path("run"), torch::kCPU);
  Random random(torch::kCPU, 2);
  const auto images = random.normal({5, 3, 16, 16}, torch::kFloat);
  const auto profiles = energy_profiles(model, images);
  const auto first = model.log_density_and_gradient(images, 0);
  const int64_t times = model.times();
  const auto features = model.features(images);
  ASSERT_EQ(features.sizes(), (std::vector<int64_t>{5, 8 * 4})) << "four of a channel, twice";
  ASSERT_EQ(profiles.sizes(), (std::vector<int64_t>{5, times + 4 + 8 * 4}));
  EXPECT_TRUE(profiles.slice(1, times + 4).equal(features));
  for (int64_t t = 0; t < times; ++t) {
    EXPECT_TRUE(torch::allclose(profiles.select(1, t), model.log_density_at(images, t), 1e-5));
  }
  const auto squares = (2 * profiles.slice(1, times, times + 4)).exp();
  const auto pixels = torch::tensor({1.0, 4.0, 16.0, 64.0}, torch::kDouble);
  EXPECT_TRUE(torch::allclose(squares.mv(pixels), first.gradient.flatten(1).square().sum(1), 1e-4));
  // Features are each image's own.
  EXPECT_TRUE(
      torch::allclose(model.features(images.slice(0, 2, 3)), features.slice(0, 2, 3), 1e-5));
  EXPECT_FALSE(torch::allclose(features[0], features[1], 1e-5));
  const auto smooth = torch::avg_pool2d(torch::constant_pad_nd(images, {2, 2, 2, 2}), 5, 1);
  const auto neighbours = model.features(smooth).slice(1, 2 * 4, 4 * 4).mean();
  EXPECT_GT(neighbours.item<double>(), features.slice(1, 2 * 4, 4 * 4).mean().item<double>())
      << "neighbours of smooth images have more in common";
}

}  // namespace
}  // namespace ddaebm
