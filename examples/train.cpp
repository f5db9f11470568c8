// Trains on data that a program has in memory, a helix in three dimensions: train RUN [ITERATIONS]
#include <atomic>
#include <cstdio>
#include <string>

#include <ddaebm/ddaebm.h>

namespace {

// As in a settings file; `ddaebm settings table` shows all that there is. What is not named here
// has its default.
constexpr const char* kSettings = R"(
[data]
name = "helix"    # for reports; the rows come from this program
[diffusion]
beta_max = 2.5
[game]
gamma = 0.002
reference_std = 1.0
noise_at_t0 = true
[train]
batch = 200
lr = 0.001
ema = 0.99
)";

// Points [n, 3] on a helix, with a little noise.
torch::Tensor helix(int64_t n) {
  const auto angle = 12 * torch::rand({n});
  return torch::stack({angle.cos(), angle.sin(), angle / 4}, 1) + 0.05 * torch::randn({n, 3});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: train RUN [ITERATIONS]\n");
    return 2;
  }
  try {
    auto file = ddaebm::ConfigFile::parse(kSettings, "helix");
    file.set("train.iterations=" + std::string(argc > 2 ? argv[2] : "5000"));
    ddaebm::RunSettings settings(file);

    const auto rows = helix(10000);
    ddaebm::TrainOptions options;
    options.folder = argv[1];
    options.open_source = [&](torch::Device device) {
      return ddaebm::open_rows(rows, settings.data, device);
    };
    const std::atomic<int> stop = 0;  // a signal's handler may set it
    ddaebm::train(settings, options, stop);

    ddaebm::Model model = ddaebm::Model::load(argv[1], torch::kCPU);
    const auto mean = [&](const torch::Tensor& x) {
      return model.log_density(x).mean().item<double>();
    };
    std::printf("log-density: on the helix %.2f, on its axis %.2f, of samples %.2f\n",
                mean(helix(1000)), mean(helix(1000) * torch::tensor({0.0, 0.0, 1.0})),
                mean(model.sample(1000, /*seed=*/0)));
  } catch (const ddaebm::Error& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 2;
  }
}
