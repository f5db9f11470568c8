// The command line as a user meets it: the built program in a folder of its own.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <thread>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiny = R"(
[data]
name = "8gaussians"
[train]
iterations = 6
batch = 8
log_every = 2
evaluate_every = 0
evaluation_samples = 1000
[net]
branch = [4, 6]
trunk = [8]
)";

// A folder with settings and, once asked for, a finished run; shared by all tests of this file.
class Cli : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir;
    write_file(path("tiny.toml"), kTiny);
    const auto result = run_app({"train", path("tiny.toml"), "--quiet", "--out", path("run")});
    ASSERT_EQ(result.code, 0) << result.err;
    ASSERT_EQ(result.err, "") << "quiet";
    ASSERT_NE(result.out.find("kl "), std::string::npos) << result.out;
    ASSERT_NE(result.out.find("report: " + path("run") + "/report.html"), std::string::npos);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string path(const std::string& name) { return (folder_->path() / name).string(); }

  // Exit 2, one line that starts with the program's name and holds all of `parts`; not a file
  // changed, none new.
  static void expect_refused(const std::vector<std::string>& arguments,
                             const std::vector<std::string>& parts) {
    std::string shown;
    for (const auto& argument : arguments) shown += argument.substr(0, 80) + " ";
    SCOPED_TRACE(shown);
    const auto before = snapshot(folder_->path());
    const auto result = run_app(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(result.err.rfind("ddaebm: ", 0), 0U) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const auto& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos)
          << "'" << part << "' is not in: " << result.err;
    }
    EXPECT_TRUE(snapshot(folder_->path()) == before) << "files changed";
  }
  static std::vector<std::string> train(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"train", path("tiny.toml"), "--quiet", "--out", path("new")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  static TempDir* folder_;
};
TempDir* Cli::folder_ = nullptr;

TEST_F(Cli, HelpOfEveryCommandShowsAnExample) {
  for (const char* command : {"train", "sample", "score", "eval", "ood", "fid", "report", "data",
                              "import", "export", "settings", "check", "completion", "manual"}) {
    SCOPED_TRACE(command);
    const auto result = run_app({command, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
    const size_t example = result.out.find("Example");
    ASSERT_NE(example, std::string::npos) << result.out;
    EXPECT_NE(result.out.find(std::string("ddaebm ") + command, example), std::string::npos)
        << result.out;
  }
  const auto top = run_app({"--help"});
  EXPECT_EQ(top.code, 0);
  EXPECT_NE(top.out.find("Example: ddaebm train"), std::string::npos) << top.out;
  EXPECT_EQ(run_app({"--version"}).code, 0);
}

TEST_F(Cli, UnknownWordsAreRefused) {
  expect_refused({}, {"subcommand", "--help"});
  expect_refused({"tarin"}, {"'tarin' is no command", "--help"});
  expect_refused({"train"}, {"SETTINGS", "--help"});
  expect_refused(train({"--fast"}), {"--fast", "--help"});
  expect_refused({"sample", path("run")}, {"-o", "--help"});
  expect_refused({"sample", path("run"), "-n", "0", "-o", path("x.csv")}, {"-n"});
  expect_refused({"sample", path("run"), "-n", "many", "-o", path("x.csv")}, {"many"});
  expect_refused({"completion", "tcsh"}, {"bash, zsh or fish"});
  expect_refused({"export", path("run"), "-o", path("model.onnx")}, {".pt"});
  expect_refused({"data", "lost"}, {"--help"});
}

TEST_F(Cli, BadSettingsAreRefused) {
  expect_refused({"train", "no-such-preset"}, {"'no-such-preset'", "preset"});
  expect_refused({"train", std::string(5000, 'x')}, {"name too long"});
  expect_refused({"settings", "no-such-preset"}, {"'no-such-preset'", "preset"});
  expect_refused({"train", path("")}, {"neither a preset nor a settings file"});
  expect_refused(train({"--set", "train.lrr=1"}), {"train.lrr", "did you mean 'train.lr'"});
  expect_refused(train({"--set", "train.lr=fast"}), {"train.lr", "fast", "a number"});
  expect_refused(train({"--set", "train.batch=0"}), {"train.batch", "at least 2"});
  expect_refused(train({"--set", "diffusion.steps=0"}), {"diffusion.steps", "between 1 and 1000"});
  expect_refused(train({"--set", "diffusion.beta_min=30"}),
                 {"diffusion.beta_max is 20", "diffusion.beta_min, 30"});
  expect_refused(train({"--set", "game.divergence=js"}), {"jeffrey, kl"});
  expect_refused(train({"--set", "method=gan"}), {"'gan'", "ddaebm"});
  expect_refused(train({"--set", "data.name=nowhere.csv"}), {"'nowhere.csv'", "data list"});
  expect_refused(train({"--set", "train.lr"}), {"key=value"});
  expect_refused(train({"--set", "train.lr=nan"}), {"train.lr", "finite"});
  write_file(path("broken.toml"), "[train\n");
  expect_refused({"train", path("broken.toml")}, {path("broken.toml") + ":1"});
  write_file(path("typo.toml"), "\n[train]\niterations = 5\nbach = 3\n");
  expect_refused({"train", path("typo.toml")},
                 {path("typo.toml") + ":4", "train.bach", "'train.batch'"});
  write_file(path("binary.toml"), std::string("\0\1\2", 3));
  expect_refused({"train", path("binary.toml")}, {path("binary.toml") + ":1"});
}

TEST_F(Cli, BadDataIsRefused) {
  const auto with = [&](const std::string& name, const std::string& text) {
    write_file(path(name), text);
    return train({"--set", "data.name=" + path(name)});
  };
  expect_refused(with("empty.csv", ""), {path("empty.csv")});
  expect_refused(with("header.csv", "a,b\n"), {path("header.csv")});
  expect_refused(with("ragged.csv", "1,2\n3,4\n5\n"), {path("ragged.csv"), "3"});
  expect_refused(with("nan.csv", "1,2\n3,nan\n5,6\n"), {path("nan.csv"), "row 2, column 2", "nan"});
  expect_refused(with("inf.csv", "1,2\n3,4\ninf,6\n"), {path("inf.csv"), "row 3, column 1"});
  expect_refused(with("word.csv", "1,2\n3,four\n"), {path("word.csv"), "four"});
  expect_refused(with("data.npy", "no array"), {path("data.npy")});
  expect_refused(with("data.txt", "1,2\n3,4\n"), {path("data.txt"), ".csv"});
  fs::create_directory(path("bare"));
  expect_refused(train({"--set", "data.name=" + path("bare")}), {path("bare"), "no images"});
}

TEST_F(Cli, BadRunsAreRefused) {
  expect_refused({"train", path("tiny.toml"), "--quiet", "--out", path("run")},
                 {"holds a run already", "--resume"});
  expect_refused({"train", path("tiny.toml"), "--out", path("run"), "--resume", "--quiet", "--set",
                  "train.lr=0.5"},
                 {"train.lr = ", "--out"});
  for (const char* command : {"sample", "score", "eval", "report"}) {
    std::vector<std::string> arguments = {command, path("nowhere")};
    if (std::string(command) == "score") arguments.push_back("8gaussians");
    if (std::string(command)[0] == 's') arguments.insert(arguments.end(), {"-o", path("x.csv")});
    expect_refused(arguments, {path("nowhere"), "not a run folder"});
  }
  fs::copy(path("run"), path("young"), fs::copy_options::recursive);
  fs::remove(path("young/checkpoint-000000006.safetensors"));
  expect_refused({"sample", path("young"), "-o", path("x.csv")}, {"no checkpoint yet"});
  fs::copy(path("run"), path("bad"), fs::copy_options::recursive);
  const std::string checkpoint = path("bad/checkpoint-000000006.safetensors");
  const std::string good = read_file(checkpoint);
  write_file(checkpoint, good.substr(0, good.size() - 7));
  const std::vector<std::vector<std::string>> uses = {
      {"sample", path("bad"), "-o", path("x.csv")},
      {"score", path("bad"), "8gaussians", "-o", path("x.csv")},
      {"eval", path("bad")},
      {"train", path("bad"), "--resume", "--quiet"}};
  for (const auto& use : uses) expect_refused(use, {checkpoint});
  write_safetensors(checkpoint, {{{"weight", torch::zeros({2})}}, {}});
  for (const auto& use : uses) expect_refused(use, {checkpoint, "format"});
}

TEST_F(Cli, BadOutputsAreRefused) {
  expect_refused({"sample", path("run"), "-o", path("x.jpg")},
                 {".csv, .npy, .safetensors or .png"});
  expect_refused({"score", path("run"), "8gaussians", "-o", path("x.png")}, {".csv or .npy"});
  expect_refused({"sample", path("run"), "-n", "5", "-o", path("no/such/folder/x.csv")},
                 {path("no/such/folder/x.csv"), "No such file"});
  expect_refused({"score", path("run"), "8gaussians", "-n", "5", "-o", path("tiny.toml/x.csv")},
                 {path("tiny.toml/x.csv")});
  expect_refused({"train", path("tiny.toml"), "--quiet", "--out", path("tiny.toml/run")},
                 {path("tiny.toml/run")});
  fs::create_directories(path("taken.csv"));
  expect_refused({"sample", path("run"), "-n", "5", "-o", path("taken.csv")}, {path("taken.csv")});
}

TEST_F(Cli, AMissingDeviceIsRefused) {
  expect_refused(train({"--device", "tpu"}), {"--device tpu", "cpu, cuda or cuda:N"});
  expect_refused(train({"--device", "cuda:x"}), {"--device cuda:x"});
  expect_refused(train({"--device", "cuda:99"}), {"--device cuda:99", "--device cpu"});
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is a CUDA device";
  expect_refused(train({"--device", "cuda"}), {"no CUDA device", "--device cpu"});
  expect_refused({"sample", path("run"), "-o", path("x.csv"), "--device", "cuda"},
                 {"no CUDA device", "--device cpu"});
  expect_refused({"check", "--device", "cuda"}, {"no CUDA device", "--device cpu"});
}

TEST_F(Cli, SamplesInEveryFormatAreTheSamePoints) {
  for (const char* ending : {"csv", "npy", "safetensors", "png"}) {
    const auto result =
        run_app({"sample", path("run"), "-n", "30", "-o", path(std::string("points.") + ending)});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("30 samples"), std::string::npos) << result.out;
  }
  const auto csv = read_csv(path("points.csv")).rows;
  const auto npy = read_npy(path("points.npy"));
  const auto tensors = read_safetensors(path("points.safetensors")).tensors;
  ASSERT_EQ(npy.sizes(), torch::IntArrayRef({30, 2}));
  EXPECT_EQ(npy.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(csv.to(torch::kFloat), npy));
  EXPECT_TRUE(torch::equal(tensors.at("samples"), npy));
  EXPECT_EQ(read_png(path("points.png")).sizes(), torch::IntArrayRef({600, 600, 3}));
}

TEST_F(Cli, ASeedDrawsTheSameSamplesAgain) {
  const auto draw = [&](const std::string& seed, const std::string& name) {
    const auto result =
        run_app({"sample", path("run"), "-n", "20", "--seed", seed, "-o", path(name)});
    EXPECT_EQ(result.code, 0) << result.err;
    return read_file(path(name));
  };
  const auto first = draw("5", "seed-a.npy");
  EXPECT_TRUE(draw("5", "seed-b.npy") == first);
  EXPECT_FALSE(draw("6", "seed-c.npy") == first);
}

TEST_F(Cli, ScoresKeepTheOrderOfTheRows) {
  const auto rows =
      torch::tensor({{0.0, 0.0}, {3.0, -1.0}, {0.5, 0.25}, {-2.0, 2.0}}, torch::kDouble);
  write_csv(path("rows.csv"), {{"x", "y"}, rows});
  write_npy(path("reversed.npy"), rows.flip(0));
  EXPECT_EQ(run_app({"score", path("run"), path("rows.csv"), "-o", path("scores.csv")}).code, 0);
  EXPECT_EQ(run_app({"score", path("run"), path("reversed.npy"), "-o", path("scores.npy")}).code,
            0);
  const auto csv = read_csv(path("scores.csv"));
  EXPECT_EQ(csv.names, (std::vector<std::string>{"log_density"}));
  ASSERT_EQ(csv.rows.sizes(), torch::IntArrayRef({4, 1}));
  const auto npy = read_npy(path("scores.npy"));
  EXPECT_LE((npy.flip(0) - csv.rows.squeeze(1)).abs().max().item<double>(), 1e-5);
  EXPECT_GT((csv.rows[0] - csv.rows[1]).abs().item<double>(), 1e-4) << "rows differ";

  write_csv(path("wide.csv"), {{}, torch::zeros({3, 3}, torch::kDouble)});
  expect_refused({"score", path("run"), path("wide.csv"), "-o", path("x.csv")},
                 {path("wide.csv"), "3 columns", "2"});
}

TEST_F(Cli, EvalAndReportRenewTheirFiles) {
  fs::copy(path("run"), path("renewed"), fs::copy_options::recursive);
  for (const char* name : {"evaluation.json", "density.png", "report.html"}) {
    fs::remove(fs::path(path("renewed")) / name);
  }
  const auto report = run_app({"report", path("renewed")});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(report.out, path("renewed") + "/report.html\n");
  EXPECT_TRUE(fs::exists(path("renewed/report.html")));
  const auto eval = run_app({"eval", path("renewed")});
  EXPECT_EQ(eval.code, 0) << eval.err;
  const auto written = nlohmann::json::parse(read_file(path("renewed/evaluation.json")));
  const auto trained = nlohmann::json::parse(read_file(path("run/evaluation.json")));
  EXPECT_EQ(written.at("iteration"), 6);
  for (const char* name : {"kl", "js", "hq", "modes", "mmd"}) {
    EXPECT_NEAR(written.at(name).get<double>(), trained.at(name).get<double>(), 1e-4) << name;
    EXPECT_NE(eval.out.find(std::string(name) + " "), std::string::npos) << eval.out;
  }
  EXPECT_NO_THROW(read_png(path("renewed/density.png")));
}

TEST_F(Cli, EvalNormalisesAndShowsEnergiesWhenAsked) {
  fs::copy(path("run"), path("normalised"), fs::copy_options::recursive);
  const std::vector<std::string> small = {"eval", path("normalised"), "--log-z", "--chains",
                                          "20",   "--bridges",        "30",      "--energies"};
  const auto eval = run_app(small);
  ASSERT_EQ(eval.code, 0) << eval.err;
  const auto found = nlohmann::json::parse(read_file(path("normalised/evaluation.json")));
  for (const char* name : {"log_z", "log_z_error", "log_z_reverse", "log_likelihood"}) {
    EXPECT_TRUE(std::isfinite(found.at(name).get<double>())) << name;
    EXPECT_NE(eval.out.find(std::string(name) + " "), std::string::npos) << eval.out;
  }
  ASSERT_EQ(found.at("energies").size(), 5U);
  EXPECT_EQ(found.at("energies")[0].at("name"), "real");
  EXPECT_EQ(found.at("energies")[0].at("auroc"), 0.5);
  EXPECT_NO_THROW(read_png(path("normalised/energies.png")));
  const std::string report = read_file(path("normalised/report.html"));
  EXPECT_NE(report.find("log_likelihood"), std::string::npos);
  EXPECT_NE(report.find("real + noise 0.5"), std::string::npos);
  auto by_times = small;
  by_times.insert(by_times.end(), {"--path", "times"});
  EXPECT_EQ(run_app(by_times).code, 0);
  expect_refused({"eval", path("run"), "--log-z", "--chains", "1"}, {"--chains"});
  expect_refused({"eval", path("run"), "--log-z", "--path", "round"}, {"--path"});
}

TEST_F(Cli, ATableGoesAllTheWay) {
  Random random(torch::kCPU, 1);
  write_csv(path("table.csv"), {{"a", "b", "c"}, 5 * random.normal({50, 3}, torch::kDouble) + 100});
  const auto trained = run_app({"train", path("tiny.toml"), "--quiet", "--out", path("table"),
                                "--set", "data.name=" + path("table.csv")});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_NE(trained.out.find("held_out_score"), std::string::npos) << trained.out;
  EXPECT_EQ(run_app({"sample", path("table"), "-n", "2000", "-o", path("t.npy")}).code, 0);
  const auto samples = read_npy(path("t.npy"));
  ASSERT_EQ(samples.sizes(), torch::IntArrayRef({2000, 3}));
  EXPECT_NEAR(samples.mean().item<double>(), 100, 20) << "in the data's own units";
  EXPECT_EQ(run_app({"score", path("table"), path("table.csv"), "-o", path("t.csv")}).code, 0);
  EXPECT_EQ(read_csv(path("t.csv")).rows.size(0), 50);
  expect_refused({"sample", path("table"), "-o", path("t.png")}, {"2-D", "3 columns"});
}

// Ends a run that would go on for hours once it has logged something.
App::Result interrupt(const std::string& settings, const std::string& out, int signal) {
  App app({"train", settings, "--quiet", "--out", out, "--set", "train.iterations=100000000"});
  while (!fs::exists(fs::path(out) / "metrics.jsonl") && !app.ended()) std::this_thread::yield();
  app.signal(signal);
  return app.wait();
}

TEST_F(Cli, AnInterruptLeavesACheckpointAndSaysHowToGoOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string out = path("signal" + std::to_string(signal));
    const auto result = interrupt(path("tiny.toml"), out, signal);
    EXPECT_EQ(result.code, 128 + signal) << result.err;
    EXPECT_EQ(result.out, "stopped; continue with: ddaebm train " + out + " --resume\n");
    EXPECT_EQ(run_app({"sample", out, "-n", "3", "-o", path("stopped.csv")}).code, 0)
        << "the checkpoint works";
  }
}

TEST_F(Cli, SettingsArePrintedInFullAndReadBack) {
  EXPECT_NE(run_app({"settings"}).out.find("table              A starting point for a table"),
            std::string::npos);
  const auto first = run_app({"settings", path("tiny.toml")});
  ASSERT_EQ(first.code, 0) << first.err;
  write_file(path("printed.toml"), first.out);
  EXPECT_EQ(run_app({"settings", path("printed.toml")}).out, first.out);
  EXPECT_EQ(run_app({"settings", path("run")}).out, first.out) << "a run folder names its settings";
  EXPECT_EQ(read_file(path("run/config.toml")), first.out);
}

TEST_F(Cli, CompletionsParseWhereTheirShellIsThere) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    const auto result = run_app({"completion", shell});
    ASSERT_EQ(result.code, 0) << result.err;
    write_file(path("completion." + shell), result.out);
    if (std::system(("command -v " + shell + " >/dev/null").c_str()) == 0) {
      EXPECT_EQ(std::system((shell + " -n " + path("completion." + shell)).c_str()), 0);
    }
  }
  const std::string ask = "source " + path("completion.bash") +
                          "; COMP_WORDS=(ddaebm tr); COMP_CWORD=1; _ddaebm; "
                          "[ \"${COMPREPLY[0]}\" = train ]";
  EXPECT_EQ(std::system(("bash -c '" + ask + "'").c_str()), 0);
}

// Whatever --help names.
TEST_F(Cli, ManualAndCompletionsHaveEveryCommandAndOption) {
  const auto without = [](std::string text, char c) {
    text.erase(std::remove(text.begin(), text.end(), c), text.end());
    return text;
  };
  const std::string manual = without(run_app({"manual"}).out, '\\');
  const std::string bash = run_app({"completion", "bash"}).out;
  const std::string zsh = run_app({"completion", "zsh"}).out;
  const std::string fish = run_app({"completion", "fish"}).out;
  const std::regex command("^  ([a-z]+) ", std::regex::multiline);
  const std::regex option("--([a-z][a-z-]*)");
  const auto matches = [](const std::string& text, const std::regex& what) {
    std::set<std::string> found;
    for (std::sregex_iterator i(text.begin(), text.end(), what), end; i != end; ++i) {
      found.insert((*i)[1]);
    }
    return found;
  };
  const std::string top = run_app({"--help"}).out;
  const auto commands = matches(top.substr(top.find("Subcommands:")), command);
  EXPECT_EQ(commands.count("train"), 1U);
  EXPECT_EQ(commands.count("manual"), 0U) << "is for packages";
  for (const auto& name : commands) {
    EXPECT_NE(manual.find(".SS ddaebm " + name), std::string::npos) << name;
    EXPECT_NE(fish.find("__fish_seen_subcommand_from " + name + "'"), std::string::npos) << name;
    const std::string help = run_app({name, "--help"}).out;
    for (const auto& word : matches(help.substr(0, help.find("Example")), option)) {
      SCOPED_TRACE(name + " --" + word);
      EXPECT_NE(manual.find("fB--" + word + "fR"), std::string::npos);
      EXPECT_NE(bash.find("--" + word), std::string::npos);
      EXPECT_NE(zsh.find("'--" + word + ":"), std::string::npos);
      EXPECT_NE(fish.find("-l '" + word + "'"), std::string::npos);
    }
  }
}

TEST_F(Cli, ExportSaysWhatTheFileCanDo) {
  const auto result = run_app({"export", path("run"), "-o", path("model.pt")});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("score(x)"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("sample(n)"), std::string::npos) << result.out;
  write_file(path("dsm.toml"),
             "method = \"dsm\"\n[data]\nname = \"moons\"\n[train]\niterations = 2\n"
             "evaluation_samples = 1000\n[net]\nenergy_hidden = [8]\n"
             "[langevin]\nsteps = 3\n");
  ASSERT_EQ(run_app({"train", path("dsm.toml"), "--quiet", "--out", path("dsm")}).code, 0);
  const auto scores_only = run_app({"export", path("dsm"), "-o", path("dsm.pt")});
  ASSERT_EQ(scores_only.code, 0) << scores_only.err;
  EXPECT_NE(scores_only.out.find("no sample(n)"), std::string::npos) << scores_only.out;

  // A table, so that no density is integrated over a grid.
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += fmt::format("{},{},{}\n", i % 7, i % 5, i);
  write_file(path("rows.csv"), rows);
  write_file(path("flow.toml"),
             fmt::format("method = \"scoreflow\"\n[data]\nname = \"{}\"\n[train]\n"
                         "iterations = 2\nevaluation_samples = 1000\n"
                         "[net]\nbranch = [4]\ntrunk = [4]\n"
                         "[score]\node_steps = 2\n",
                         path("rows.csv")));
  ASSERT_EQ(run_app({"train", path("flow.toml"), "--quiet", "--out", path("flow")}).code, 0);
  expect_refused({"export", path("flow"), "-o", path("flow.pt")},
                 {"takes gradients", "ddaebm serve"});
}

TEST_F(Cli, CheckFindsEveryOperatorRight) {
  const auto result = run_app({"check"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.rfind("ok ", 0), 0U) << result.out;
  EXPECT_EQ(result.out.find("WRONG"), std::string::npos) << result.out;
}

TEST_F(Cli, DataListNamesEverySet) {
  const auto result = run_app({"data", "list"});
  EXPECT_EQ(result.code, 0);
  for (const auto& toy : toy_list()) {
    EXPECT_NE(result.out.find(toy.name), std::string::npos) << toy.name;
    EXPECT_NE(result.out.find(toy.description), std::string::npos) << toy.name;
  }
}

TEST(Presets, ParseAndNameData) {
  for (const auto& entry : fs::directory_iterator(DDAEBM_PRESETS)) {
    if (entry.path().extension() != ".toml") continue;
    SCOPED_TRACE(entry.path().string());
    RunSettings settings(ConfigFile::parse(read_file(entry.path()), entry.path().string()));
    // A preset for tables leaves its data to the user.
    const std::string& name = settings.data.name;
    const bool images = find_image_set(name) != nullptr;
    EXPECT_TRUE(images || is_toy(name) || fs::path(name).extension() == ".csv") << name;
    if (!images) {
      EXPECT_NO_THROW(settings.method_settings->build({2}, torch::kFloat));
    }
  }
}

}  // namespace
}  // namespace ddaebm
