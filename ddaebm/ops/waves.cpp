#include "ddaebm/ops/waves.h"

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Fused : Function<Fused> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& frequencies) {
    auto y = gpu::waves(x, frequencies);
    ctx->save_for_backward({x, y, frequencies});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const auto saved = ctx->get_saved_variables();
    if (!torch::GradMode::is_enabled()) {
      return {gpu::waves_backward(given[0], saved[1], saved[2]), Tensor()};
    }
    const auto again = reference::waves(saved[0], saved[2]);
    const auto found = torch::autograd::grad({again}, {saved[0]}, {given[0]},
                                             /*retain_graph=*/true, /*create_graph=*/true);
    return {found[0], Tensor()};
  }
};

}  // namespace

Tensor waves(const Tensor& x, const Tensor& frequencies) {
  // A trace sees LibTorch's operators only.
  const bool fused = gpu::takes(x) && x.scalar_type() != torch::kBFloat16 &&
                     x.scalar_type() == frequencies.scalar_type() &&
                     !at::tracer::impl::is_dispatch_enabled();
  return fused ? Fused::apply(x, frequencies) : reference::waves(x, frequencies);
}

namespace reference {

Tensor waves(const Tensor& x, const Tensor& frequencies) {
  const auto phase = (x.unsqueeze(2) * frequencies).flatten(1);
  return torch::cat({x, phase.sin(), phase.cos()}, 1);
}

}  // namespace reference

}  // namespace ddaebm::ops
