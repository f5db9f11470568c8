#pragma once

#include <tuple>
#include <vector>

#include <torch/types.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/ops/dense_kernels.h"
#include "ddaebm/ops/image_kernels.h"
#include "ddaebm/ops/row_sum_kind.h"

// The GPU's way of doing what dense and image kernels do. A build without CUDA has a twin that
// never finds a GPU.
namespace ddaebm::ops::gpu {

// Whether the kernels below take this tensor: on a GPU, float32, float64 or bfloat16.
bool takes(const torch::Tensor& x);

torch::Tensor group_norm_forward(kernels::GroupNormParts& parts, const GroupNormConfig& config);
kernels::GroupNormGradients group_norm_backward(const torch::Tensor& gy,
                                                const kernels::GroupNormParts& parts,
                                                const GroupNormConfig& config, bool channels_wanted,
                                                const torch::Tensor& more);
// For a cotangent of gx alone.
kernels::GroupNormSecondGradients group_norm_backward_twice(const torch::Tensor& v,
                                                            const torch::Tensor& gy,
                                                            const kernels::GroupNormParts& parts,
                                                            const GroupNormConfig& config);

// The image kernels of image_kernels.h.
torch::Tensor scaled_sum(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& bias,
                         double gain);
std::tuple<torch::Tensor, torch::Tensor> scaled_with_sums(const torch::Tensor& g, double gain);
torch::Tensor concatenate(const torch::Tensor& a, const torch::Tensor& b);
std::tuple<torch::Tensor, torch::Tensor> separate(const torch::Tensor& whole, int64_t first);
// Sums over the rows of each image, [N, P, C] -> [N, C], as sums are made.
torch::Tensor sums_over_pixels(const torch::Tensor& rows);
// See ops/attention.cpp: rows of a softmax along the last axis, all tensors of its shape.
std::tuple<torch::Tensor, torch::Tensor> softmax_twice(const torch::Tensor& a,
                                                       const torch::Tensor& h,
                                                       const torch::Tensor& gs,
                                                       const torch::Tensor& b);
torch::Tensor fir(const torch::Tensor& x, int64_t out_height, int64_t out_width,
                  const kernels::FirSteps& steps);

// Those of dense_kernels.h, for float32 and float64.
torch::Tensor add_bias(const kernels::Matrix& h, const torch::Tensor& table,
                       const torch::Tensor& rows);
kernels::Bent bias_prelu(const kernels::Matrix& h, const torch::Tensor& table,
                         const torch::Tensor& rows, const torch::Tensor& slope,
                         const torch::Tensor& after, const torch::Tensor& after_rows);
kernels::Bent bias_bend(const kernels::Matrix& h, const torch::Tensor& bias,
                        const torch::Tensor& before, const torch::Tensor& rows, Bend bend);
torch::Tensor bend_backward(const kernels::Matrix& gy, const torch::Tensor& h, Bend bend,
                            const torch::Tensor& more);
kernels::BendTwice bend_backward_twice(const kernels::Matrix& u, const torch::Tensor& gy,
                                       const torch::Tensor& h, Bend bend);
torch::Tensor prelu_backward(const kernels::Matrix& gy, const torch::Tensor& h,
                             const torch::Tensor& slope);
kernels::PreluGradients bias_prelu_backward(const kernels::Matrix& gy, const torch::Tensor& h,
                                            const torch::Tensor& slope, const torch::Tensor& rows,
                                            int64_t table_rows);
kernels::PreluGradients bias_prelu_tangent(const kernels::Matrix& u, const torch::Tensor& weight,
                                           const torch::Tensor& table, const torch::Tensor& rows,
                                           const torch::Tensor& h, const torch::Tensor& slope,
                                           const torch::Tensor& dy);
torch::Tensor sum_rows(const torch::Tensor& g, const torch::Tensor& rows, int64_t table_rows);
kernels::Normalised bias_norm_prelu(const kernels::Matrix& h, const torch::Tensor& table,
                                    const torch::Tensor& rows, const kernels::NormParts& norm,
                                    const torch::Tensor& slope);
kernels::NormPreluGradients norm_prelu_backward(
    const kernels::Matrix& gy, const torch::Tensor& normalised,
    const torch::Tensor& inverse_deviation, const torch::Tensor& scale, const torch::Tensor& shift,
    const torch::Tensor& slope, const torch::Tensor& rows, int64_t table_rows);

// See waves.h; y is what the first gives.
torch::Tensor waves(const torch::Tensor& x, const torch::Tensor& frequencies);
torch::Tensor waves_backward(const torch::Tensor& gy, const torch::Tensor& y,
                             const torch::Tensor& frequencies);

// Those of row_sums.h: a is the target or z, b what is told from it or the mean, c the logarithms
// of variances.
struct RowSum {
  RowSumKind kind;
  torch::Tensor a, b, c, scale, weight, added;
};
// Whether the kernels take rows that lie like these.
bool takes_rows(const RowSum& sum);
torch::Tensor row_sum(const RowSum& sum);
std::tuple<torch::Tensor, torch::Tensor> row_sum_backward(const torch::Tensor& g,
                                                          const RowSum& sum);

// The sum of each of tensors [n] of one type, [count].
torch::Tensor sums(const std::vector<torch::Tensor>& flat);
// Of tensors [n] of one type, copied end to end in another, or added to `onto` where it is given.
torch::Tensor end_to_end(const std::vector<torch::Tensor>& flat, torch::ScalarType type,
                         const torch::Tensor& onto);

void adam(torch::Tensor& p, const torch::Tensor& g, torch::Tensor& m, torch::Tensor& v,
          torch::Tensor& average, const torch::Tensor& dials, const AdamConstants& constants);

}  // namespace ddaebm::ops::gpu
