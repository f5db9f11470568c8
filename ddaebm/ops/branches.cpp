#include "ddaebm/ops/branches.h"

#include <numbers>
#include <tuple>

#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/image_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr double kHalf = std::numbers::sqrt2 / 2;

struct Residual : Function<Residual> {
  static Tensor forward(AutogradContext*, const Tensor& a, const Tensor& b, const Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    return kernels::scaled_sum(a, b, bias, kHalf);
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const Tensor& g = given[0];
    if (torch::GradMode::is_enabled() || !ctx->needs_input_grad(2)) {
      const auto scaled = g * kHalf;
      return {scaled, scaled,
              ctx->needs_input_grad(2) ? scaled.sum(at::IntArrayRef({2, 3})) : Tensor()};
    }
    const auto [scaled, sums] = kernels::scaled_with_sums(g, kHalf);
    return {scaled, scaled, sums};
  }
};

Tensor join(const Tensor& a, const Tensor& b);

struct Separate : Function<Separate> {
  static variable_list forward(AutogradContext*, const Tensor& whole, int64_t first) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    auto [a, b] = kernels::separate(whole, first);
    return {a, b};
  }
  static variable_list backward(AutogradContext*, variable_list given) {
    return {join(given[0], given[1]), Tensor()};
  }
};

struct Concatenate : Function<Concatenate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    ctx->saved_data["first"] = a.size(1);
    return kernels::concatenate(a, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    return Separate::apply(given[0], ctx->saved_data["first"].toInt());
  }
};

Tensor join(const Tensor& a, const Tensor& b) { return Concatenate::apply(a, b); }

}  // namespace

Tensor residual(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return kernels::takes(a) ? Residual::apply(a, b, bias) : reference::residual(a, b, bias);
}

Tensor concatenate(const Tensor& a, const Tensor& b) {
  return kernels::takes(a) ? join(a, b) : reference::concatenate(a, b);
}

Tensor reference::residual(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return (a + b + bias.to(a.scalar_type()).unsqueeze(2).unsqueeze(3)) * kHalf;
}

Tensor reference::concatenate(const Tensor& a, const Tensor& b) { return at::cat({a, b}, 1); }

}  // namespace ddaebm::ops
