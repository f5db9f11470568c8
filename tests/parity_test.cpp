// Golden vectors: every file of DDAEBM_PARITY_DIR (default: tests/golden) is run by its `kind` and
// settings, in float64, and must agree to 1e-9; kind fid, whose features were computed in float32,
// to 1e-3.

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/metrics/fid.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/nets/authors_names.h"
#include "ddaebm/nets/nice.h"
#include "ddaebm/train/optimizer.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;
constexpr double kTolerance = 1e-9;

// Relative to the largest entry, so that entries near zero are not asked for more digits than the
// sums they come from have.
void expect_close(const torch::Tensor& ours, const torch::Tensor& golden, const std::string& what,
                  double least_scale = 1e-3) {
  ASSERT_EQ(ours.numel(), golden.numel()) << what;
  const auto a = ours.detach().to(torch::kDouble).reshape({-1});
  const auto b = golden.to(torch::kDouble).reshape({-1});
  if (b.numel() == 0) return;
  const double error = (a - b).abs().max().item<double>();
  const double scale = b.abs().max().item<double>();
  EXPECT_TRUE(error <= kTolerance * std::max(scale, least_scale))
      << what << ": error " << error << ", largest entry " << scale;
}

// The settings of a file; each must be asked for, so that none is passed over in silence.
class Settings {
 public:
  explicit Settings(std::map<std::string, std::string> values) : values_(std::move(values)) {}
  std::string take(const std::string& key, const std::string& fallback) {
    const auto found = values_.find(key);
    if (found == values_.end()) return fallback;
    std::string value = found->second;
    values_.erase(found);
    return value;
  }
  double number(const std::string& key, double fallback) {
    return std::stod(take(key, std::to_string(fallback)));
  }
  void expect_all_taken() const {
    for (const auto& [key, value] : values_)
      ADD_FAILURE() << "unknown setting " << key << "=" << value;
  }

 private:
  std::map<std::string, std::string> values_;
};

ScheduleConfig schedule_config(Settings& settings, const std::string& clamp_default) {
  ScheduleConfig config;
  config.steps = std::stoll(settings.take("num_timesteps", "4"));
  config.beta_min = settings.number("beta_min", 0.1);
  config.beta_max = settings.number("beta_max", 20.0);
  const std::string times = settings.take("time_schedule", "equidistant");
  EXPECT_TRUE(times == "equidistant" || times == "recovery") << times;
  config.times = times == "recovery" ? TimeGrid::recovery : TimeGrid::equidistant;
  const std::string clamp = settings.take("clamp", clamp_default);
  EXPECT_TRUE(clamp == "image" || clamp == "toy") << clamp;
  if (clamp == "image") {
    config.beta_limit = 0.999;
    config.posterior_variance_floor = 1e-4;
  }
  return config;
}

void run_schedule(const Safetensors& file, Settings settings) {
  const Schedule schedule(schedule_config(settings, "toy"));
  settings.expect_all_taken();
  const std::map<std::string, std::vector<double>> ours = {
      {"time", schedule.time},
      {"a", schedule.a},
      {"sigma", schedule.sigma},
      {"a_bar", schedule.a_bar},
      {"sigma_bar", schedule.sigma_bar},
      {"beta", schedule.beta},
      {"post_coef_x0", schedule.posterior_x0},
      {"post_coef_xt", schedule.posterior_next},
      {"post_var", schedule.posterior_variance},
      {"post_logvar_clipped", schedule.posterior_log_variance}};
  for (const auto& [name, golden] : file.tensors) {
    double w = 0;
    double w_mid = 0;
    if (std::sscanf(name.c_str(), "importance_w%lf_wmid%lf", &w, &w_mid) == 2) {
      expect_close(torch::tensor(schedule.importance(w, w_mid), torch::kDouble), golden, name);
    } else if (ours.count(name) != 0) {
      expect_close(torch::tensor(ours.at(name), torch::kDouble), golden, name);
    } else {
      ADD_FAILURE() << "unknown tensor " << name;
    }
  }
}

int64_t count_layers(const Safetensors& file, const std::string& stack) {
  int64_t n = 0;
  while (file.tensors.count("weight." + stack + ".layers." + std::to_string(n) + ".weight") != 0)
    ++n;
  return n;
}

// What both kinds of step share: the weights of the file put in, its iterations played with its
// draws, and everything that came of the first compared.
using Find = std::function<std::optional<std::string>(const std::string& authors_name)>;
struct StepCase {
  const Safetensors& file;
  Ddaebm& method;
  Networks networks;
  const Process& process;
  OptimizerConfig adam;
  int64_t steps;
  Find our_name;
  bool batch_norm;
};

bool starts_with(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

// The entries of `flat` at linspace(0, n - 1, k), cut to whole numbers. Where the place is a whole
// number, LibTorch's versions differ in whether it or the one before comes out: the one that the
// golden entry is nearer to counts.
torch::Tensor sampled(const torch::Tensor& flat, const torch::Tensor& golden) {
  const int64_t k = std::max<int64_t>(golden.numel() - 1, 1);
  const auto scaled = torch::arange(golden.numel(), torch::kLong) * (flat.numel() - 1);
  const auto place = scaled.div(k, "floor");
  const auto whole = scaled.remainder(k).eq(0).logical_and(place.gt(0));
  const auto here = flat.index_select(0, place);
  const auto before = flat.index_select(0, (place - 1).clamp_min(0));
  const auto nearer = (before - golden).abs().lt((here - golden).abs());
  return torch::where(whole.logical_and(nearer), before, here);
}

// Of a loss that comes in parts; `gathered` has the gradients of those before.
void compare_gradients(const StepCase& c, std::map<std::string, torch::Tensor>& ours,
                       const torch::Tensor& loss, bool last, const std::string& networks,
                       std::vector<torch::Tensor>& gathered) {
  // One entry a tensor of ours; the file has all of it, or a sample and its norm.
  std::vector<std::pair<std::string, std::string>> wanted;  // golden name, our name
  for (const auto& [name, golden] : c.file.tensors) {
    for (const char* kind : {"out.grad.", "out.gradsample.", "out.gradnorm."}) {
      if (!starts_with(name, kind)) continue;
      const std::string authors_name = name.substr(std::string(kind).size());
      const std::string network = authors_name.substr(0, authors_name.find('.') + 1);
      if (networks.find(network) == std::string::npos) continue;
      const auto found = c.our_name(authors_name);
      ASSERT_TRUE(found) << name;
      wanted.emplace_back(name, *found);
    }
  }
  std::vector<torch::Tensor> inputs;
  for (const auto& [golden, name] : wanted) inputs.push_back(ours.at(name));
  if (loss.defined()) {
    auto gradients = torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true);
    for (size_t i = 0; i < gathered.size(); ++i) gradients[i] = gradients[i] + gathered[i];
    gathered = gradients;
  }
  if (!last) return;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].first;
    const auto& golden = c.file.tensors.at(name);
    const auto flat = gathered.at(i).reshape({-1});
    if (starts_with(name, "out.gradsample.")) {
      // Entries of the sample may all be small beside the rest.
      expect_close(sampled(flat, golden), golden, name, 0.01 * flat.abs().max().item<double>());
    } else if (starts_with(name, "out.gradnorm.")) {
      expect_close(flat.norm(), golden, name);
    } else {
      expect_close(flat, golden, name);
    }
  }
}

void run_step(const StepCase& c) {
  const auto tensor = [&](const std::string& name) { return c.file.tensors.at(name); };
  std::map<std::string, torch::Tensor> ours;
  for (const auto& item : c.method.module().named_parameters()) ours[item.key()] = item.value();
  for (const auto& item : c.method.module().named_buffers()) ours[item.key()] = item.value();
  {
    const torch::NoGradGuard no_grad;
    std::set<std::string> filled;
    for (const auto& [name, value] : c.file.tensors) {
      if (!starts_with(name, "weight.")) continue;
      const auto found = c.our_name(name.substr(7));
      if (!found) continue;
      ASSERT_TRUE(ours.count(*found)) << name << " -> " << *found;
      ASSERT_EQ(ours.at(*found).sizes(), value.sizes()) << name << " -> " << *found;
      ours.at(*found).copy_(value);
      filled.insert(*found);
    }
    for (const auto& [name, value] : ours) {
      if (name.find("embeddings") == std::string::npos) {
        EXPECT_TRUE(filled.count(name)) << name << " is not in the file";
      }
    }
  }

  const auto x0 = tensor("x0");
  const torch::TensorOptions options(torch::kDouble);
  Optimizer optimizer(c.method, c.adam);
  for (int64_t step = 0; step < c.steps; ++step) {
    const std::string prefix = "noise." + std::to_string(step) + ".";
    const Noise noise{tensor("t"),          tensor(prefix + "eps_t"),    tensor(prefix + "eps_tp1"),
                      tensor(prefix + "z"), tensor(prefix + "eps_post"), tensor(prefix + "eps_enc"),
                      /*origin=*/{},        /*from_origin=*/{}};
    optimizer.set_iteration(step, c.steps);
    // The authors' code reconstructs x_0 from the encoder's latent even where no loss uses it.
    torch::Tensor encoders_guess;
    if (!c.batch_norm) {
      const torch::NoGradGuard no_grad;
      const Steps at = c.process.at(noise.t, x0.dim());
      const auto x_t = at.diffuse(x0, noise.eps_t);
      const auto x_next = at.advance(x_t, noise.eps_next);
      const auto q = c.networks.encoder->forward(x_t, x_next, noise.t);
      encoders_guess = c.networks.generator->forward(
          x_next, q.mean + (0.5 * q.log_variance).exp() * noise.eps_encoder, noise.t);
    }
    std::vector<torch::Tensor> gathered[2];
    std::mutex gathering;
    const Update update = [&](size_t player, const torch::Tensor& loss, bool last) {
      if (step == 0) {
        const std::lock_guard lock(gathering);
        compare_gradients(c, ours, loss, last, player == 0 ? "energy." : "generator.|encoder.",
                          gathered[player]);
      }
      optimizer.update(player, loss, last);
    };
    const Iteration it = c.method.play(x0, noise, update);
    if (step != 0) continue;
    const Steps at = c.process.at(noise.t, x0.dim());
    const std::map<std::string, torch::Tensor> outputs = {
        {"x_t", it.x_t},
        {"x_tp1", it.x_next},
        {"x0_pred", it.x0_guess},
        {"x_pos", it.fake},
        {"energy_real", it.energy_real},
        {"energy_fake", it.energy_fake},
        {"logq_fwd_real", at.log_q(it.x_next, it.x_t)},
        {"grad_input", it.penalty_gradient},
        {"gp", it.penalty},
        {"loss_energy", it.energy_loss},
        {"post_mean", it.code.mean},
        {"post_logvar", it.code.log_variance},
        {"x0_recon", c.batch_norm ? it.x0_reconstruction : encoders_guess},
        {"loss_recon", it.reconstruction_loss},
        {"loss_kl", it.kl_loss},
        {"loss_latent", it.latent_loss},
        {"energy_term", -it.fake_energy_term},
        {"loss_generator", it.generator_loss}};
    for (const auto& [name, golden] : c.file.tensors) {
      if (!starts_with(name, "out.") || starts_with(name, "out.grad.") ||
          starts_with(name, "out.gradsample.") || starts_with(name, "out.gradnorm.") ||
          starts_with(name, "out.after.")) {
        continue;
      }
      ASSERT_TRUE(outputs.count(name.substr(4))) << "unknown tensor " << name;
      expect_close(outputs.at(name.substr(4)), golden, name);
    }
  }
  for (const auto& [name, golden] : c.file.tensors) {
    if (!starts_with(name, "out.after.")) continue;
    const auto found = c.our_name(name.substr(10));
    if (!found) continue;
    // A norm cancels a constant, so the gradient of a bias in its path is rounding noise, which
    // Adam's division by its own size makes 1e-10 large.
    const bool noise = c.batch_norm && name.find(".energy.") == std::string::npos &&
                       name.find("bias") != std::string::npos;
    expect_close(ours.at(*found), golden, name, noise ? 1.0 : 1e-3);
  }
}

// The settings that both kinds of step have.
GameConfig game_config(Settings& settings, double variance_floor) {
  GameConfig game;
  game.gamma = settings.number("gamma", 0.02);
  game.latent_weight = settings.number("latent_weight", 0.1);
  game.fake_weight = settings.number("fake_weight", 1.0);
  const std::string recon = settings.take("recon", "nll");
  EXPECT_TRUE(recon == "nll" || recon == "mse_posterior" || recon == "mse_prior") << recon;
  if (recon != "nll") game.reconstruction = Reconstruction::mse;
  if (recon == "mse_prior") game.reconstruction_latent = ReconstructionLatent::prior;
  game.reconstruction_variance_floor = variance_floor;
  const auto importance = nlohmann::json::parse(settings.take("importance", "null"));
  if (!importance.is_null()) {
    game.lambda_w = importance.at(0);
    game.lambda_w_mid = importance.at(1);
  }
  return game;
}

OptimizerConfig adam_config(Settings& settings) {
  OptimizerConfig adam;
  adam.lr = settings.number("lr", 1e-4);
  const auto betas = nlohmann::json::parse(settings.take("adam", "[0.0, 0.9, 1e-08]"));
  adam.beta1 = betas.at(0);
  adam.beta2 = betas.at(1);
  adam.eps = betas.at(2);
  return adam;
}

std::vector<int64_t> integers(const std::string& json) {
  return nlohmann::json::parse(json).get<std::vector<int64_t>>();
}

void run_toy_step(const Safetensors& file, Settings settings) {
  const auto weight = [&](const std::string& name) { return file.tensors.at("weight." + name); };
  const auto x0 = file.tensors.at("x0");

  const auto schedule = schedule_config(settings, "toy");
  MlpConfig net;
  net.trunk = integers(settings.take("hidden", "[300,300]"));
  const int64_t trunk_layers = count_layers(file, "energy.net");
  const int64_t branch_layers = count_layers(file, "energy.x_encoder");
  ASSERT_EQ(static_cast<size_t>(trunk_layers), net.trunk.size() + 1);
  net.branch.clear();
  for (int64_t i = 0; i < branch_layers; ++i) {
    net.branch.push_back(
        weight("energy.x_encoder.layers." + std::to_string(i) + ".weight").size(0));
  }
  net.embedding = weight("energy.t_encoder.layers.0.weight").size(1);
  net.latent = file.tensors.at("noise.0.z").size(1);
  net.code = weight("encoder.fc_mu.weight").size(1);

  const std::string floor = settings.take("recon_logvar_floor", "log(1e-2)");
  double argument = 0;
  const bool log_of = std::sscanf(floor.c_str(), "log(%lf)", &argument) == 1;
  const auto game = game_config(settings, log_of ? argument : std::exp(std::stod(floor)));
  const auto adam = adam_config(settings);
  const int64_t steps = std::stoll(settings.take("steps", "1"));
  settings.expect_all_taken();

  const torch::TensorOptions options(torch::kDouble);
  const auto networks = make_vector_networks(x0.size(1), schedule.steps, net);
  Ddaebm method(Schedule(schedule), game, networks, net.latent, {x0.size(1)}, options);
  const Process process(Schedule(schedule), options);
  run_step({file, method, networks, process, adam, steps,
            [&](const std::string& name) { return our_name(name, trunk_layers, branch_layers); },
            /*batch_norm=*/true});
}

void run_image_step(const Safetensors& file, Settings settings) {
  const auto x0 = file.tensors.at("x0");
  const auto expect = [&](const std::string& key, const std::string& value) {
    EXPECT_EQ(settings.take(key, value), value) << key;
  };
  const auto count = [&](const std::string& key) { return std::stoll(settings.take(key, "-1")); };
  // What the paper's networks have in common.
  expect("resblock_type", "biggan");
  expect("progressive", "none");
  expect("embedding_type", "positional");
  expect("conditional", "true");
  expect("centered", "true");
  expect("skip_rescale", "true");
  expect("use_geometric", "false");
  EXPECT_EQ(integers(settings.take("fir_kernel", "[1,3,3,1]")), (std::vector<int64_t>{1, 3, 3, 1}));
  EXPECT_EQ(settings.number("dropout", 0.0), 0.0);
  // Without a meaning for these networks.
  for (const char* key : {"progressive_combine", "fourier_scale", "resamp_with_conv"}) {
    settings.take(key, "");
  }

  const auto schedule = schedule_config(settings, "image");
  const ImageShape image{std::stoll(settings.take("num_channels", "3")),
                         std::stoll(settings.take("image_size", "32"))};
  ASSERT_EQ(x0.size(1), image.channels);
  ASSERT_EQ(x0.size(2), image.size);
  ImageNetConfig net;
  net.dropout = 0.0;
  net.channels = count("num_channels_dae");
  net.multipliers = integers(settings.take("ch_mult", "[]"));
  net.blocks = count("num_res_blocks");
  net.energy_blocks = count("num_res_blocks_E");
  net.attention = integers(settings.take("attn_resolutions", "[16]"));
  net.resample = settings.take("fir", "true") == "true" ? ops::Filter::fir : ops::Filter::box;
  const std::string pyramid = settings.take("progressive_input", "residual");
  EXPECT_TRUE(pyramid == "residual" || pyramid == "none") << pyramid;
  net.pyramid = pyramid == "residual";
  net.tanh = settings.take("not_use_tanh", "false") == "false";
  net.latent = count("nz");
  net.latent_width = count("z_emb_dim");
  net.latent_layers = count("n_mlp");
  net.encoder = settings.take("encoder", "small") == "large" ? ImageEncoder::large
                                                             : ImageEncoder::convolutional;
  net.encoder_width = count("encoder_width");
  net.encoder_time = count("t_emb_dim");

  const Schedule numbers(schedule);
  const auto at_one = static_cast<size_t>(std::min<int64_t>(1, schedule.steps - 1));
  const std::string floor = settings.take("recon_logvar_floor", "");
  const auto game =
      game_config(settings, floor.empty() ? std::exp(numbers.posterior_log_variance.at(at_one))
                                          : std::exp(std::stod(floor)));
  const auto adam = adam_config(settings);
  const int64_t steps = std::stoll(settings.take("steps", "1"));

  const torch::TensorOptions options(torch::kDouble);
  const auto networks = make_image_networks(image, schedule.steps, net);
  Ddaebm method(numbers, game, networks, net.latent, {image.channels, image.size, image.size},
                options);
  for (const char* network : {"generator", "energy", "encoder"}) {
    int64_t parameters = 0;
    for (const auto& item : method.module().named_parameters()) {
      if (starts_with(item.key(), std::string(network) + ".")) parameters += item.value().numel();
    }
    EXPECT_EQ(parameters, count(std::string(network) + "_params")) << network;
  }
  settings.expect_all_taken();
  const Process process(numbers, options);
  run_step({file, method, networks, process, adam, steps,
            [&](const std::string& name) { return our_image_name(name, method.module()); },
            /*batch_norm=*/false});
}

// Entry by entry, those below a thousandth of the largest counting as that.
void expect_features_close(const torch::Tensor& ours, const torch::Tensor& golden,
                           const std::string& what) {
  ASSERT_EQ(ours.sizes(), golden.sizes()) << what;
  const auto a = ours.to(torch::kCPU, torch::kDouble);
  const auto scale = golden.abs().clamp_min(1e-3 * golden.abs().max().item<double>());
  const double error = ((a - golden).abs() / scale).max().item<double>();
  EXPECT_LT(error, 1e-3) << what;
  std::cout << what << ": relative error " << error << ", of the norm "
            << ((a - golden).norm() / golden.norm()).item<double>() << "\n";
}

double feature_distance(const torch::Tensor& a, const torch::Tensor& b) {
  Moments first;
  Moments second;
  first.add(a);
  second.add(b);
  return frechet_distance(first.statistics(), second.statistics());
}

void expect_distance(double ours, double golden, const std::string& what) {
  EXPECT_NEAR(ours, golden, 1e-3 * golden) << what;
  std::cout << what << ": " << ours << ", golden " << golden << "\n";
}

// The first 400 images of a binary batch of CIFAR-10, or nothing where it is not in the data
// folder.
std::optional<torch::Tensor> cifar_400(const fs::path& weights, const char* batch) {
  const char* given = std::getenv("DDAEBM_DATA");
  const fs::path folder = given != nullptr ? fs::path(given) : weights.parent_path();
  const fs::path path = folder / "cifar-10-batches-bin" / batch;
  constexpr int64_t kRecord = 1 + 3 * 32 * 32;
  if (!fs::exists(path) || fs::file_size(path) < 400 * kRecord) return std::nullopt;
  const std::string bytes = read_file(path).substr(0, 400 * kRecord);
  return from_packed(bytes, {400, kRecord}, torch::kByte)
      .narrow(1, 1, kRecord - 1)
      .reshape({400, 3, 32, 32});
}

// Whether the file's network was there to run it.
bool run_fid(const Safetensors& file, Settings settings) {
  settings.take("note", "");
  const auto values = nlohmann::json::parse(settings.take("values", "{}"));
  settings.expect_all_taken();
  const auto weights = find_inception();
  if (!weights) return false;
  const auto device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  const Inception net(*weights, torch::TensorOptions(torch::kFloat).device(device));
  if (net.width() != 768) return false;
  const Inception precise(*weights, torch::TensorOptions(torch::kDouble).device(device));

  std::map<std::string, torch::Tensor> features;
  for (const std::string prefix : {"", "noisy_"}) {
    const auto images = file.tensors.at(prefix.empty() ? "images_u8" : prefix + "u8");
    const auto golden = file.tensors.at(prefix + "features");
    features[prefix] = net.features(images);
    expect_features_close(features[prefix], golden, prefix + "features in float32");
    expect_features_close(precise.features(images.narrow(0, 0, 2)), golden.narrow(0, 0, 2),
                          prefix + "features in float64");
    EXPECT_LT(feature_distance(golden, golden), 1e-6);
  }
  expect_distance(feature_distance(features[""], features["noisy_"]),
                  feature_distance(file.tensors.at("features"), file.tensors.at("noisy_features")),
                  "FID-768 of the images and the noisy ones");

  // The other values are of images that are not in the file.
  const auto test = cifar_400(*weights, "test_batch.bin");
  const auto training = cifar_400(*weights, "data_batch_1.bin");
  if (!test || !training) {
    std::cout << "CIFAR-10 is not in the data folder: its distances are skipped\n";
    return true;
  }
  const auto of_test = net.features(*test);
  const auto of_training = net.features(*training);
  expect_features_close(of_test.mean(0), file.tensors.at("features_test400_mean"), "test mean");
  expect_features_close(of_training.mean(0), file.tensors.at("features_train400_mean"),
                        "training mean");
  for (const auto& [name, golden] : values.items()) {
    if (name == "fid_test400_vs_train400") {
      expect_distance(feature_distance(of_test, of_training), golden, name);
    } else if (name == "fid_test_first200_vs_last200") {
      expect_distance(feature_distance(of_test.narrow(0, 0, 200), of_test.narrow(0, 200, 200)),
                      golden, name);
    } else {
      std::cout << name << ": skipped, the file does not say which images\n";
    }
  }
  return true;
}

void run_nice(const Safetensors& file, Settings settings) {
  NiceConfig config;
  config.couplings = std::stoll(settings.take("couplings", "4"));
  const int64_t width = std::stoll(settings.take("hidden", "1000"));
  const auto hidden = static_cast<size_t>(std::stoll(settings.take("hidden_layers", "4")));
  config.hidden.assign(hidden, width);
  EXPECT_EQ(settings.take("activation", "softplus"), "softplus");
  config.activation = NiceConfig::softplus;
  config.embedding = 0;
  EXPECT_EQ(settings.take("loss", "-mean(log_prob)+0.5*mean(|d log_prob/dx|^2)"),
            "-mean(log_prob)+0.5*mean(|d log_prob/dx|^2)");
  const int64_t size = std::stoll(settings.take("size", "784"));
  settings.expect_all_taken();

  Nice nice(size, 1, config);
  std::map<std::string, torch::Tensor> ours = {{"scale.scales", nice->scale}};
  for (size_t c = 0; c < nice->couplings.size(); ++c) {
    for (size_t i = 0; i < nice->couplings[c].size(); ++i) {
      const std::string name = fmt::format("nice{}.dense{}.", c + 1, i + 1);
      ours[name + "weight"] = nice->couplings[c][i].weight;
      ours[name + "bias"] = nice->couplings[c][i].bias;
    }
  }
  const auto golden = [&](const std::string& name) { return file.tensors.at(name); };
  {
    const torch::NoGradGuard no_grad;
    for (auto& [name, tensor] : ours)
      tensor.copy_(golden("weight." + name).reshape(tensor.sizes()));
  }
  const auto x = golden("x").clone().requires_grad_();
  const auto log_density = nice->log_density(x);
  const auto gradient = torch::autograd::grad({log_density.sum()}, {x}, {}, true, true)[0];
  expect_close(log_density, golden("out.log_prob"), "log_prob");
  expect_close(nice->forward(x), golden("out.y"), "y");
  expect_close(gradient, golden("out.grad_x"), "grad_x");
  expect_close(nice->inverse(golden("z")), golden("out.inverse"), "inverse");
  const auto loss = -log_density.mean() + 0.5 * gradient.square().sum(1).mean();
  expect_close(loss, golden("out.loss"), "loss");
  loss.backward();
  for (const auto& [name, tensor] : ours) {
    expect_close(tensor.grad(), golden("out.grad." + name), name);
  }
  size_t tensors = 2 + 5 + 2 * ours.size();
  EXPECT_EQ(file.tensors.size(), tensors) << "tensors that were not looked at";
}

TEST(Parity, GoldenVectors) {
  const char* given = std::getenv("DDAEBM_PARITY_DIR");
  const fs::path folder = given != nullptr ? given : DDAEBM_GOLDEN;
  const std::set<std::string> planned = {"nice"};
  int run = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const Safetensors file = read_safetensors(entry.path());
    Settings settings(file.metadata);
    const std::string kind = settings.take("kind", "");
    if (kind == "schedule") {
      run_schedule(file, settings);
    } else if (kind == "toy_step") {
      run_toy_step(file, settings);
    } else if (kind == "image_step") {
      run_image_step(file, settings);
    } else if (kind == "nice") {
      run_nice(file, settings);
    } else if (kind == "fid") {
      if (!run_fid(file, settings)) {
        std::cout << entry.path().filename().string()
                  << ": skipped, the weights of the Inception network are not there\n";
        continue;
      }
    } else if (planned.count(kind) != 0) {
      std::cout << entry.path().filename().string() << ": kind " << kind
                << " is not implemented yet\n";
      continue;
    } else {
      ADD_FAILURE() << "unknown kind '" << kind << "'";
    }
    ++run;
  }
  EXPECT_GT(run, 0) << "no golden vectors in " << folder;
}

}  // namespace
}  // namespace ddaebm
