#include "ddaebm/methods/fce.h"

#include "ddaebm/methods/one_energy.h"
#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {
namespace {

constexpr size_t kEnergy = 0;
constexpr size_t kFlow = 1;

}  // namespace

Fce::Fce(const FceConfig& config, std::shared_ptr<EnergyNet> energy, Glow flow, int64_t dimension,
         const torch::TensorOptions& options)
    : config_(config),
      energy_(std::make_shared<NormalisedEnergy>(std::move(energy), config.log_z)),
      flow_(std::move(flow)),
      dimension_(dimension),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("fce")) {
  module_->register_module("energy", energy_);
  module_->register_module("flow", flow_.ptr());
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& Fce::players() const {
  static const std::vector<Player> players = {{"energy", {"energy"}}, {"flow", {"flow"}}};
  return players;
}

const std::vector<std::string>& Fce::loss_names() const {
  static const std::vector<std::string> names = {"value", "flow_nll", "log_z"};
  return names;
}

torch::Tensor Fce::value(const torch::Tensor& x, const torch::Tensor& log_q,
                         const GlowImpl::Drawn& drawn) {
  const auto of_data = energy_->forward(x, {}) - log_q;
  const auto of_drawn = energy_->forward(drawn.x, {}) - drawn.log_density;
  return at::log_sigmoid(of_data).mean() + at::log_sigmoid(-of_drawn).mean();
}

torch::Tensor Fce::step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                        const Update& update) {
  const auto noise = [&] { return random.normal(x0.sizes(), options_); };
  for (int64_t i = 0; i < config_.energy_updates; ++i) {
    GlowImpl::Drawn drawn;
    torch::Tensor log_q;
    {
      const torch::NoGradGuard no_grad;
      drawn = flow_->draw(noise());
      log_q = flow_->log_density(x0);
    }
    update(kEnergy, -value(x0, log_q, drawn), /*last=*/true);
  }
  // The flow's gradient goes through its points and through its density, at them and at data.
  const auto log_q = flow_->log_density(x0);
  const auto v = value(x0, log_q, flow_->draw(noise()));
  const auto nll = -log_q.mean();
  const auto playing = (progress >= config_.pretrain).to(options_);
  update(kFlow, playing * v + (1 - playing) * nll, /*last=*/true);
  return torch::stack({v, nll, energy_->c}).detach();
}

torch::Tensor Fce::log_density(const torch::Tensor& x) { return energy_->forward(x, {}); }

torch::Tensor Fce::sample(int64_t n, Random& random) {
  const torch::NoGradGuard no_grad;
  return flow_->draw(random.normal({n, dimension_}, options_)).x;
}

namespace {

struct FceSettings : MethodSettings {
  PlainConfig net;
  GlowConfig glow;
  FceConfig contrast;

  void visit(Fields& f) override {
    f.section("net", net);
    f.section("glow", glow);
    f.section("contrast", contrast);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    const auto dimension = vector_dimension(event);
    return std::make_unique<Fce>(contrast, make_plain_energy(dimension, net), Glow(dimension, glow),
                                 dimension, options);
  }
};

}  // namespace

std::unique_ptr<MethodSettings> fce_settings() { return std::make_unique<FceSettings>(); }

}  // namespace ddaebm
