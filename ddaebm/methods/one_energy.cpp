#include "ddaebm/methods/one_energy.h"

namespace ddaebm {

OneEnergy::OneEnergy(std::shared_ptr<EnergyNet> energy, const torch::TensorOptions& options)
    : energy_(std::move(energy)),
      options_(options),
      module_(std::make_shared<torch::nn::Module>("one_energy")) {
  module_->register_module("energy", energy_);
  module_->to(options.device(), c10::typeMetaToScalarType(options.dtype()));
}

const std::vector<Player>& OneEnergy::players() const {
  static const std::vector<Player> players = {{"energy", {"energy"}}};
  return players;
}

const std::vector<std::string>& OneEnergy::loss_names() const {
  static const std::vector<std::string> names = {"loss"};
  return names;
}

torch::Tensor OneEnergy::step(const torch::Tensor& x0, const torch::Tensor& /*progress*/,
                              Random& random, const Update& update) {
  const auto loss = losses(x0, random).mean();
  update(0, loss, /*last=*/true);
  return loss.detach().reshape({1});
}

torch::Tensor OneEnergy::log_density(const torch::Tensor& x) { return energy_->forward(x, {}); }

}  // namespace ddaebm
