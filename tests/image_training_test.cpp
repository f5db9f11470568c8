// Images from files to a trained run and back: the whole way, on networks that are as small as they
// can be.

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/nets/authors_names.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/train/import.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/trainer.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiny = R"(
[data]
size = 16
flip = true
[diffusion]
beta_min = 0.1
beta_max = 20.0
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
[game]
reconstruction = "mse"
[train]
batch = 6
iterations = 6
ema = 0.5
evaluate_every = 0
evaluation_samples = 1000
checkpoint_every = 3
log_every = 1
)";

struct Gallery {
  Gallery() {
    torch::manual_seed(0);
    for (int i = 0; i < 20; ++i) {
      write_png(photos() / (std::to_string(i) + ".png"),
                torch::randint(256, {20, 24, 3}, torch::kLong).to(torch::kUInt8));
    }
  }
  fs::path photos() const {
    fs::create_directories(folder.path() / "photos");
    return folder.path() / "photos";
  }
  RunSettings settings(const std::vector<std::string>& changes = {}) const {
    auto file = ConfigFile::parse(kTiny, "tiny");
    file.set("data.name=" + photos().string());
    for (const auto& change : changes) file.set(change);
    return RunSettings(file);
  }
  fs::path train(const std::string& name, const std::vector<std::string>& changes = {},
                 bool resume = false) const {
    auto run = settings(changes);
    TrainOptions options;
    options.folder = folder.path() / name;
    options.quiet = true;
    options.resume = resume;
    const std::atomic<int> stop{0};
    ddaebm::train(run, options, stop);
    return options.folder;
  }
  TempDir folder;
};

std::map<std::string, torch::Tensor> newest(const fs::path& run) {
  const RunFolder folder{run};
  return read_safetensors(folder.checkpoint(folder.checkpoints().back())).tensors;
}

TEST(ImageRuns, TrainSampleAndScore) {
  const Gallery gallery;
  const auto run = gallery.train("run");
  EXPECT_TRUE(fs::exists(run / "samples.png"));
  EXPECT_TRUE(fs::exists(run / "report.html"));
  Model model = Model::load(run, torch::kCPU);
  EXPECT_EQ(model.event(), (std::vector<int64_t>{3, 16, 16}));
  const auto samples = model.sample(5, 1);
  EXPECT_EQ(samples.sizes(), (std::vector<int64_t>{5, 3, 16, 16}));
  EXPECT_LE(samples.abs().max().item<double>(), 1.5);
  EXPECT_TRUE(torch::equal(samples, model.sample(5, 1)));
  const auto scores = model.log_density(samples);
  EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{5}));
  EXPECT_TRUE(scores.isfinite().all().item<bool>());
  EXPECT_THROW(model.log_density(torch::zeros({2, 3, 8, 8})), Error);
}

TEST(ImageRuns, AResumedRunEndsInTheSameBits) {
  const Gallery gallery;
  const std::vector<std::string> dropout = {"image_net.dropout=0.2"};
  const auto whole = newest(gallery.train("whole", dropout));
  const auto run = gallery.train("parts", dropout);
  fs::remove(RunFolder{run}.checkpoint(6));  // as if it had been killed on the way to it
  const auto parts = newest(gallery.train("parts", dropout, /*resume=*/true));
  ASSERT_EQ(whole.size(), parts.size());
  for (const auto& [name, tensor] : whole) {
    EXPECT_TRUE(torch::equal(tensor, parts.at(name))) << name;
  }
}

TEST(ImageRuns, MicroBatchesMayChangeOnTheWay) {
  const Gallery gallery;
  const auto run = gallery.train("run", {"image_net.dropout=0.0"});
  fs::remove(RunFolder{run}.checkpoint(6));
  EXPECT_NO_THROW(
      gallery.train("run", {"image_net.dropout=0.0", "train.micro_batch=4"}, /*resume=*/true));
}

TEST(ImageRuns, RefuseWhatTheNetworksCannotTake) {
  const Gallery gallery;
  EXPECT_THROW(gallery.train("a", {"data.size=18"}), Error);
  EXPECT_THROW(gallery.train("b", {"data.size=0"}), Error);  // 20 x 24: not square
  EXPECT_FALSE(fs::exists(gallery.folder.path() / "a" / "config.toml"));
}

// The golden networks as the authors' checkpoints name them.
AuthorsCheckpoint golden_checkpoint(const Safetensors& file) {
  AuthorsCheckpoint checkpoint;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.rfind("weight.", 0) != 0) continue;
    const auto dot = name.find('.', 7);
    checkpoint.networks[name.substr(7, dot - 7)].emplace_back(name.substr(dot + 1), tensor);
  }
  return checkpoint;
}

RunSettings golden_settings(const std::vector<std::string>& changes = {}) {
  auto file = ConfigFile::parse(R"(
[image_net]
channels = 8
multipliers = [1, 2]
blocks = 1
energy_blocks = 1
latent = 10
latent_width = 24
latent_layers = 2
encoder_width = 8
encoder_time = 20
)",
                                "golden");
  for (const auto& change : changes) file.set(change);
  return RunSettings(file);
}

TEST(Import, MakesARunThatScoresAndSamplesLikeTheNetworks) {
  const auto file = read_safetensors(fs::path(DDAEBM_GOLDEN) / "image_step_ncsnpp.safetensors");
  const TempDir folder;
  auto settings = golden_settings();
  EXPECT_TRUE(
      import_checkpoint(golden_checkpoint(file), settings, 32, folder.path() / "run").empty());
  Model model = Model::load(folder.path() / "run", torch::kCPU);
  EXPECT_EQ(model.sample(2, 0).sizes(), (std::vector<int64_t>{2, 3, 32, 32}));

  const auto networks = make_image_networks({3, 32}, 4, [] {
    ImageNetConfig net;
    net.channels = 8;
    net.multipliers = {1, 2};
    net.blocks = net.energy_blocks = 1;
    net.latent = 10;
    net.latent_width = 24;
    net.latent_layers = 2;
    net.encoder_width = 8;
    net.encoder_time = 20;
    return net;
  }());
  torch::nn::Module holder;
  holder.register_module("energy", networks.energy);
  {
    const torch::NoGradGuard no_grad;
    auto parameters = holder.named_parameters();
    for (const auto& [name, tensor] : file.tensors) {
      if (name.rfind("weight.energy.", 0) != 0) continue;
      parameters[*our_image_name(name.substr(7), holder)].copy_(tensor);
    }
  }
  networks.energy->eval();
  const auto x = file.tensors.at("x0");
  const auto expected = networks.energy->forward(x, torch::zeros({x.size(0)}, torch::kLong));
  const auto scores = model.log_density(x);
  EXPECT_LT(((scores - expected).abs() / expected.abs()).max().item<double>(), 1e-5);
}

TEST(Import, SaysWhatIsMissingWhenItIsNeeded) {
  const auto file = read_safetensors(fs::path(DDAEBM_GOLDEN) / "image_step_ncsnpp.safetensors");
  const TempDir folder;
  auto checkpoint = golden_checkpoint(file);
  checkpoint.networks.erase("energy");
  checkpoint.networks.erase("encoder");
  auto settings = golden_settings();
  EXPECT_FALSE(import_checkpoint(checkpoint, settings, 32, folder.path() / "run").empty());
  Model model = Model::load(folder.path() / "run", torch::kCPU);
  EXPECT_EQ(model.sample(1, 0).size(0), 1);
  EXPECT_THROW(model.log_density(torch::zeros({1, 3, 32, 32})), Error);
}

TEST(Import, RefusesWeightsOfOtherNetworks) {
  const auto file = read_safetensors(fs::path(DDAEBM_GOLDEN) / "image_step_ncsnpp.safetensors");
  const TempDir folder;
  const auto checkpoint = golden_checkpoint(file);
  for (const char* change : {"image_net.channels=16", "image_net.blocks=2",
                             "image_net.pyramid=false", "image_net.multipliers=[1,2,2]"}) {
    auto settings = golden_settings({change});
    EXPECT_THROW(import_checkpoint(checkpoint, settings, 32, folder.path() / "run"), Error)
        << change;
    EXPECT_FALSE(fs::exists(folder.path() / "run" / "config.toml")) << change;
  }
  auto settings = golden_settings();
  EXPECT_THROW(import_checkpoint({}, settings, 32, folder.path() / "run"), Error);
}

TEST(Import, ReadsWidthsFromShapes) {
  const auto file = read_safetensors(fs::path(DDAEBM_GOLDEN) / "image_step_ncsnpp.safetensors");
  const auto found = imported_settings(golden_checkpoint(file));
  const std::vector<std::string> expected = {"image_net.latent=10", "image_net.latent_width=24",
                                             "image_net.latent_layers=2", "image_net.channels=8"};
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace ddaebm
