#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops::gpu {
namespace {

[[noreturn]] void missing() { TORCH_CHECK(false, "this build has no CUDA kernels"); }

}  // namespace

bool takes(const torch::Tensor&) { return false; }

torch::Tensor group_norm_forward(kernels::GroupNormParts&, const GroupNormConfig&) { missing(); }
kernels::GroupNormGradients group_norm_backward(const torch::Tensor&,
                                                const kernels::GroupNormParts&,
                                                const GroupNormConfig&, bool,
                                                const torch::Tensor&) {
  missing();
}
kernels::GroupNormSecondGradients group_norm_backward_twice(const torch::Tensor&,
                                                            const torch::Tensor&,
                                                            const kernels::GroupNormParts&,
                                                            const GroupNormConfig&) {
  missing();
}
torch::Tensor scaled_sum(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&, double) {
  missing();
}
std::tuple<torch::Tensor, torch::Tensor> scaled_with_sums(const torch::Tensor&, double) {
  missing();
}
torch::Tensor sums_over_pixels(const torch::Tensor&) { missing(); }
std::tuple<torch::Tensor, torch::Tensor> softmax_twice(const torch::Tensor&, const torch::Tensor&,
                                                       const torch::Tensor&, const torch::Tensor&) {
  missing();
}
torch::Tensor concatenate(const torch::Tensor&, const torch::Tensor&) { missing(); }
std::tuple<torch::Tensor, torch::Tensor> separate(const torch::Tensor&, int64_t) { missing(); }
torch::Tensor fir(const torch::Tensor&, int64_t, int64_t, const kernels::FirSteps&) { missing(); }
torch::Tensor add_bias(const kernels::Matrix&, const torch::Tensor&, const torch::Tensor&) {
  missing();
}
kernels::Bent bias_prelu(const kernels::Matrix&, const torch::Tensor&, const torch::Tensor&,
                         const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  missing();
}
kernels::Bent bias_bend(const kernels::Matrix&, const torch::Tensor&, const torch::Tensor&,
                        const torch::Tensor&, Bend) {
  missing();
}
torch::Tensor bend_backward(const kernels::Matrix&, const torch::Tensor&, Bend,
                            const torch::Tensor&) {
  missing();
}
kernels::BendTwice bend_backward_twice(const kernels::Matrix&, const torch::Tensor&,
                                       const torch::Tensor&, Bend) {
  missing();
}
torch::Tensor prelu_backward(const kernels::Matrix&, const torch::Tensor&, const torch::Tensor&) {
  missing();
}
kernels::PreluGradients bias_prelu_backward(const kernels::Matrix&, const torch::Tensor&,
                                            const torch::Tensor&, const torch::Tensor&, int64_t) {
  missing();
}
kernels::PreluGradients bias_prelu_tangent(const kernels::Matrix&, const torch::Tensor&,
                                           const torch::Tensor&, const torch::Tensor&,
                                           const torch::Tensor&, const torch::Tensor&,
                                           const torch::Tensor&) {
  missing();
}
torch::Tensor sum_rows(const torch::Tensor&, const torch::Tensor&, int64_t) { missing(); }
kernels::Normalised bias_norm_prelu(const kernels::Matrix&, const torch::Tensor&,
                                    const torch::Tensor&, const kernels::NormParts&,
                                    const torch::Tensor&) {
  missing();
}
kernels::NormPreluGradients norm_prelu_backward(const kernels::Matrix&, const torch::Tensor&,
                                                const torch::Tensor&, const torch::Tensor&,
                                                const torch::Tensor&, const torch::Tensor&,
                                                const torch::Tensor&, int64_t) {
  missing();
}
torch::Tensor waves(const torch::Tensor&, const torch::Tensor&) { missing(); }
torch::Tensor waves_backward(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&) {
  missing();
}
bool takes_rows(const RowSum&) { return false; }
torch::Tensor row_sum(const RowSum&) { missing(); }
std::tuple<torch::Tensor, torch::Tensor> row_sum_backward(const torch::Tensor&, const RowSum&) {
  missing();
}
torch::Tensor sums(const std::vector<torch::Tensor>&) { missing(); }
torch::Tensor end_to_end(const std::vector<torch::Tensor>&, torch::ScalarType,
                         const torch::Tensor&) {
  missing();
}
void adam(torch::Tensor&, const torch::Tensor&, torch::Tensor&, torch::Tensor&, torch::Tensor&,
          const torch::Tensor&, const AdamConstants&) {
  missing();
}

}  // namespace ddaebm::ops::gpu
