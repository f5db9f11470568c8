#pragma once

#include "ddaebm/methods/method.h"
#include "ddaebm/nets/networks.h"

namespace ddaebm {

// What methods share whose one network is an energy and whose one loss is a mean over data.
class OneEnergy : public Method {
 public:
  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override;
  const std::vector<std::string>& loss_names() const override;
  torch::Tensor step(const torch::Tensor& x0, const torch::Tensor& progress, Random& random,
                     const Update& update) override;
  torch::Tensor log_density(const torch::Tensor& x) override;

  // The loss of each datum: x0 [N, D] -> [N].
  virtual torch::Tensor losses(const torch::Tensor& x0, Random& random) = 0;

 protected:
  OneEnergy(std::shared_ptr<EnergyNet> energy, const torch::TensorOptions& options);

  std::shared_ptr<EnergyNet> energy_;
  torch::TensorOptions options_;

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace ddaebm
