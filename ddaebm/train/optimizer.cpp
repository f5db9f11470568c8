#include "ddaebm/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/ops/beside.h"
#include "ddaebm/ops/cast.h"

namespace ddaebm {
namespace {

std::vector<NamedTensor> parameters_of(Method& method, const Player& player) {
  std::vector<NamedTensor> found;
  for (const auto& item : method.module().named_parameters()) {
    for (const auto& network : player.networks) {
      if (item.key().rfind(network + ".", 0) == 0) found.push_back({item.key(), item.value()});
    }
  }
  // A PReLU's slope is one number: it would shift all that follow it in memory by four bytes, and
  // matrices that do not begin at a multiple of sixteen are multiplied at half the speed.
  std::stable_partition(found.begin(), found.end(),
                        [](const NamedTensor& p) { return p.tensor.numel() % 4 == 0; });
  return found;
}

std::vector<NamedTensor> buffers_of(Method& method) {
  std::vector<NamedTensor> found;
  for (const auto& item : method.module().named_buffers()) {
    found.push_back({item.key(), item.value()});
  }
  return found;
}

}  // namespace

double OptimizerConfig::rate(int64_t iteration, int64_t iterations) const {
  double factor = 1.0;
  if (schedule == RateSchedule::cosine) {
    const double progress = static_cast<double>(iteration) / static_cast<double>(iterations);
    factor = lr_end + (1.0 - lr_end) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  if (iteration < warmup) {
    factor *= static_cast<double>(iteration + 1) / static_cast<double>(warmup);
  }
  return lr * factor;
}

Optimizer::Optimizer(Method& method, const OptimizerConfig& config, const Ranks* ranks)
    : config_(config), ranks_(ranks), buffers_(buffers_of(method)) {
  const torch::NoGradGuard no_grad;
  for (const Player& player : method.players()) {
    FlatTensors weights(parameters_of(method, player));
    std::vector<torch::Tensor> inputs;
    for (const auto& member : weights.members()) inputs.push_back(member.tensor);
    const auto zeros = torch::zeros_like(weights.all);
    const auto average = weights.all.clone();
    groups_.push_back({player.name,
                       std::move(weights),
                       std::move(inputs),
                       zeros,
                       zeros.clone(),
                       average,
                       {},
                       {},
                       std::make_shared<ops::Handover>(zeros.device())});
  }
  int64_t weights = 0;
  for (const Group& group : groups_) weights += group.weights.all.numel();
  ops::settle_lanes(ranks != nullptr ? ranks->size() : 1, weights);
  dials_ = torch::ones({static_cast<int64_t>(groups_.size()), 2}, groups_.at(0).m.options());
  buffer_average_ = buffers_.all.clone();
  one_ = torch::ones({}, groups_.at(0).m.options());
  norms_ = torch::zeros({static_cast<int64_t>(groups_.size())}, groups_.at(0).m.options());
}

void Optimizer::set_iteration(int64_t iteration, int64_t iterations, double scale) {
  const double k = static_cast<double>(iteration) + 1.0;
  std::vector<double> dials;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const double rate =
        scale * config_.rate(iteration, iterations) * (i == 0 ? 1.0 : config_.generator_lr_scale);
    dials.push_back(rate / (1.0 - std::pow(config_.beta1, k)));
    dials.push_back(1.0 / std::sqrt(1.0 - std::pow(config_.beta2, k)));
  }
  // All at once, and without waiting for the device: it is still busy with the last iteration.
  dials_.copy_(torch::tensor(dials, dials_.scalar_type()).view_as(dials_), /*non_blocking=*/true);
}

void Optimizer::update(size_t player, const torch::Tensor& loss, bool last) {
  Group& group = groups_.at(player);
  if (loss.defined()) gather(group, loss);
  if (!last) return;
  const torch::NoGradGuard no_grad;
  TORCH_CHECK(group.gradient.defined(), group.player, " takes a step without a loss");
  group.gathered->await();
  const auto gradient = std::exchange(group.gradient, torch::Tensor());
  group.used_gradient = gradient;
  if (ranks_ != nullptr) ranks_->mean(gradient);
  // Without clipping no one waits for the norm.
  ops::Beside beside(gradient.device(), ops::Beside::Lane::weights);
  beside.run([&] { norms_[static_cast<int64_t>(player)].copy_(gradient.norm()); });
  if (config_.clip > 0) {
    beside.join();
    const auto norm = norms_[static_cast<int64_t>(player)];
    gradient.mul_((config_.clip / (norm + 1e-12)).clamp_max(1.0));
  }
  ops::adam(group.weights.all, gradient, group.m, group.v, group.average,
            dials_[static_cast<int64_t>(player)],
            {config_.beta1, config_.beta2, config_.eps, config_.ema});
  beside.join();
}

void Optimizer::gather(Group& group, const torch::Tensor& loss) {
  auto gradients = torch::autograd::grad({loss}, group.inputs, {one_}, /*retain_graph=*/{},
                                         /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = torch::zeros_like(group.inputs[i]);
  }
  const torch::NoGradGuard no_grad;
  const std::lock_guard lock(gathering_);
  if (group.gradient.defined()) group.gathered->await();
  group.gradient = ops::end_to_end(group.inputs, gradients, group.weights.all.scalar_type(),
                                   group.gradient, group.used_gradient);
  group.gathered->made();
}

void Optimizer::average_buffers() {
  const torch::NoGradGuard no_grad;
  // Where each rank has statistics of its own, they drift apart but for this.
  if (ranks_ != nullptr && buffers_.all.numel() > 0) ranks_->mean(buffers_.all);
  buffer_average_.mul_(config_.ema).add_(buffers_.all, 1.0 - config_.ema);
}

std::vector<NamedTensor> Optimizer::state() const {
  std::vector<NamedTensor> all;
  const auto add = [&](const FlatTensors& layout, const torch::Tensor& flat, const char* what) {
    for (auto& [name, view] : layout.cut(flat)) all.push_back({std::string(what) + name, view});
  };
  for (const Group& group : groups_) {
    add(group.weights, group.weights.all, "weight.");
    add(group.weights, group.average, "average.");
    add(group.weights, group.m, "adam_m.");
    add(group.weights, group.v, "adam_v.");
  }
  add(buffers_, buffers_.all, "weight.");
  add(buffers_, buffer_average_, "average.");
  return all;
}

std::vector<torch::Tensor> Optimizer::flat_state() const {
  std::vector<torch::Tensor> all;
  for (const Group& group : groups_) {
    all.insert(all.end(), {group.weights.all, group.average, group.m, group.v});
  }
  if (buffers_.all.numel() > 0) all.insert(all.end(), {buffers_.all, buffer_average_});
  return all;
}

uint64_t Optimizer::checksum() const {
  uint64_t sum = 0;
  for (const auto& flat : flat_state()) {
    const auto bits = flat.view(flat.element_size() == 8 ? torch::kLong : torch::kInt);
    sum = Random::mix(sum ^ static_cast<uint64_t>(bits.sum(torch::kLong).item<int64_t>()));
  }
  return sum;
}

Optimizer::UseAverages::UseAverages(Optimizer& optimizer) : optimizer_(optimizer) { swap(); }
Optimizer::UseAverages::~UseAverages() { swap(); }

void Optimizer::UseAverages::swap() {
  const torch::NoGradGuard no_grad;
  const auto exchange = [](torch::Tensor& a, torch::Tensor& b) {
    const auto kept = a.clone();
    a.copy_(b);
    b.copy_(kept);
  };
  for (Group& group : optimizer_.groups_) exchange(group.weights.all, group.average);
  exchange(optimizer_.buffers_.all, optimizer_.buffer_average_);
}

}  // namespace ddaebm
