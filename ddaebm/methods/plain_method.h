#pragma once

#include <functional>

#include "ddaebm/methods/method.h"
#include "ddaebm/nets/plain_networks.h"

namespace ddaebm {

// The loss that adversarial energies share; with the penalty of WGAN-0GP where gamma is not 0.
struct ContrastConfig {
  double gamma = 0.0;
  double fake_weight = 1.0;

  void visit(Fields& f) {
    f("gamma", gamma, at_least(0), "weight of the gradient penalty on data, gamma / 2 |dE/dx|^2");
    f("fake_weight", fake_weight, at_least(0), "weight of generated points in the energy's loss");
  }
};
struct Contrast {
  torch::Tensor loss, penalty, real, fake;  // scalars; the last two are means of E
};
// fake_weight E(fake) - E(real) + gamma / 2 |dE/dx|^2 at real points, in the mean; low where E is a
// log-density of the data. Gradients go to E alone. What real and what generated points add may be
// worked out side by side, and `part` is called with each as soon as it is there.
Contrast contrast(EnergyNet& energy, const torch::Tensor& real, const torch::Tensor& fake,
                  const ContrastConfig& config,
                  const std::function<void(const torch::Tensor& loss)>& part = {});

// Networks whose parameters take no part in gradients for a while: what is computed meanwhile
// depends on them as on constants.
class Frozen {
 public:
  explicit Frozen(torch::nn::Module& network);
  ~Frozen();
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  std::vector<torch::Tensor> parameters_;
};

// An energy and a generator of vectors, without a diffusion: what the rivals have in common.
class PlainMethod : public Method {
 public:
  PlainMethod(const std::vector<int64_t>& event, const PlainConfig& net,
              const torch::TensorOptions& options);

  torch::nn::Module& module() override { return *module_; }
  const std::vector<Player>& players() const override { return players_; }
  torch::Tensor log_density(const torch::Tensor& x) override;
  // G(z).
  torch::Tensor sample(int64_t n, Random& random) override;

  EnergyNet& energy() { return *energy_; }
  Mlp& generator() { return generator_; }

 protected:
  static constexpr size_t kEnergy = 0;
  static constexpr size_t kGenerator = 1;

  // Adds a network to a player; players are made as they are named.
  void add(const std::string& player, const std::string& name,
           const std::shared_ptr<torch::nn::Module>& network);
  torch::Tensor draw_latent(int64_t n, Random& random) const;
  // Moves the energy one step down its contrast.
  Contrast contrast_step(const torch::Tensor& real, const torch::Tensor& fake,
                         const ContrastConfig& config, const Update& update);
  torch::Tensor energy(const torch::Tensor& x) { return energy_->forward(x, {}); }

  int64_t dimension_, latent_;
  torch::TensorOptions options_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<EnergyNet> energy_;
  Mlp generator_;

 private:
  std::vector<Player> players_;
};

// Settings of such a method M, with its own in a section `game`.
template <class M, class GameConfig>
struct PlainSettings : MethodSettings {
  PlainConfig net;
  GameConfig game;

  void visit(Fields& f) override {
    f.section("net", net);
    f.section("game", game);
  }
  std::unique_ptr<Method> build(const std::vector<int64_t>& event,
                                const torch::TensorOptions& options) const override {
    return std::make_unique<M>(event, net, game, options);
  }
};

}  // namespace ddaebm
