#pragma once

#include <torch/types.h>

namespace ddaebm::ops {

// Where a layer's bias comes from: row `rows[i]` of `table` [B, C] for input row i, or the one row
// of `table` [1, C] where `rows` is undefined. A network whose second input takes few values (time)
// runs on those values alone and enters here.
struct Bias {
  torch::Tensor table;
  torch::Tensor rows;  // [N] int64
};

struct BatchNorm {
  torch::Tensor scale, shift;                    // [C]
  torch::Tensor running_mean, running_variance;  // [C], updated in training
  double momentum = 0.1;
  double eps = 1e-5;
};

// prelu(x W^T + bias) with x [N, K], W [C, K], slope [1] -> [N, C]. Twice differentiable.
torch::Tensor dense_prelu(const torch::Tensor& x, const torch::Tensor& weight, const Bias& bias,
                          const torch::Tensor& slope);

// prelu(norm(x W^T + bias)) with the statistics of the batch, which also move the running ones.
// Once differentiable.
torch::Tensor dense_norm_prelu(const torch::Tensor& x, const torch::Tensor& weight,
                               const Bias& bias, const BatchNorm& norm, const torch::Tensor& slope);

namespace reference {
torch::Tensor dense_prelu(const torch::Tensor& x, const torch::Tensor& weight, const Bias& bias,
                          const torch::Tensor& slope);
torch::Tensor dense_norm_prelu(const torch::Tensor& x, const torch::Tensor& weight,
                               const Bias& bias, const BatchNorm& norm, const torch::Tensor& slope);
}  // namespace reference

}  // namespace ddaebm::ops
