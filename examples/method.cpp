// A method of one's own in one file: method RUN [ITERATIONS]
//
// Noise-contrastive estimation (Gutmann and Hyvarinen 2010): tell data from Gaussian noise of known
// density q. The best discriminator has the logit log p(x) - log q(x), so that with a logit of
// E(x) - log q(x) the energy E becomes log p itself, normalised.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>

#include <ddaebm/ddaebm.h>
#include <ddaebm/methods/energy_samples.h>
#include <ddaebm/methods/one_energy.h>
#include <ddaebm/nets/plain_networks.h>

namespace {

// One network, whose loss is a mean over data: OneEnergy is the rest of a Method.
class Nce : public ddaebm::OneEnergy {
 public:
  Nce(double spread, const ddaebm::LangevinConfig& langevin, int64_t dimension,
      std::shared_ptr<ddaebm::EnergyNet> energy, const torch::TensorOptions& options)
      : OneEnergy(std::move(energy), options),
        spread_(spread),
        langevin_(langevin),
        dimension_(dimension) {}

  torch::Tensor losses(const torch::Tensor& x0, ddaebm::Random& random) override {
    const auto noise = spread_ * random.normal(x0.sizes(), options_);
    return at::softplus(-logit(x0)) + at::softplus(logit(noise));
  }

  torch::Tensor sample(int64_t n, ddaebm::Random& random) override {
    return ddaebm::sample_energy(*energy_, n, dimension_, langevin_, options_, random);
  }

 private:
  torch::Tensor logit(const torch::Tensor& x) {
    const double constant = std::log(2 * std::numbers::pi * spread_ * spread_);
    const auto log_q = -0.5 * ((x / spread_).square() + constant).sum(1);
    return energy_->forward(x, {}) - log_q;
  }

  double spread_;
  ddaebm::LangevinConfig langevin_;
  int64_t dimension_;
};

// Each setting is named once: files, --set, errors and reports follow from it. A method's are in
// sections of its own.
struct NoiseConfig {
  double spread = 2.0;

  void visit(ddaebm::Fields& f) {
    f("spread", spread, ddaebm::more_than(0), "standard deviation of the noise");
  }
};
struct NceSettings : ddaebm::MethodSettings {
  NoiseConfig noise;
  ddaebm::PlainConfig net;
  ddaebm::LangevinConfig langevin;

  void visit(ddaebm::Fields& f) override {
    f.section("noise", noise);
    f.section("net", net);
    f.section("langevin", langevin);
  }
  std::unique_ptr<ddaebm::Method> build(const std::vector<int64_t>& event,
                                        const torch::TensorOptions& options) const override {
    const int64_t dimension = ddaebm::vector_dimension(event);
    return std::make_unique<Nce>(noise.spread, langevin, dimension,
                                 ddaebm::make_plain_energy(dimension, net), options);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: method RUN [ITERATIONS]\n");
    return 2;
  }
  try {
    ddaebm::add_method("nce", []() -> std::unique_ptr<ddaebm::MethodSettings> {
      return std::make_unique<NceSettings>();
    });
    auto file = ddaebm::ConfigFile::parse(R"(
method = "nce"
[data]
name = "moons"
[net]
energy_activation = "silu"
[train]
lr = 0.001
evaluation_samples = 2000
)",
                                          "nce");
    file.set("train.iterations=" + std::string(argc > 2 ? argv[2] : "3000"));
    ddaebm::RunSettings settings(file);
    ddaebm::TrainOptions options;
    options.folder = argv[1];
    const std::atomic<int> stop = 0;
    for (const auto& [name, value] : ddaebm::train(settings, options, stop).numbers) {
      std::printf("%s %.4g\n", name.c_str(), value);
    }
    // exp E over a grid of [-4, 4]^2 sums to one once E is a log-density.
    const auto side = torch::linspace(-4, 4, 201);
    const auto grid = torch::stack({side.repeat({201}), side.repeat_interleave(201)}, 1);
    auto model = ddaebm::Model::load(argv[1], torch::kCPU);
    std::printf("mass %.3f\n", model.log_density(grid).exp().sum().item<double>() * 0.04 * 0.04);
  } catch (const ddaebm::Error& error) {
    std::fprintf(stderr, "method: %s\n", error.what());
    return 2;
  }
}
