#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace ddaebm::ops {

// A batch of which this process has one of `parts`, all of a size: `sum` adds in place what the
// others have.
struct SpreadBatch {
  int64_t parts = 1;
  std::function<void(const torch::Tensor&)> sum;
};

// A batch norm's parameters and statistics.
struct BatchNorm {
  torch::Tensor scale, shift;                    // [C]
  torch::Tensor running_mean, running_variance;  // [C], moved in training
  double momentum = 0.1;
  double eps = 1e-5;
  std::shared_ptr<const SpreadBatch> spread;  // statistics over all parts where there are more
};

// x [N, K] -> prelu(norm(x W^T + bias)) [N, C].
struct Dense {
  torch::Tensor weight, bias;  // [C, K], [C]
  torch::Tensor slope;         // PReLU's, [1]; undefined: no PReLU, and no norm
  BatchNorm norm;              // scale undefined: none
};

// trunk([x_branch(x), t_branch(embeddings[t])]) for x [N, D] and t [N] int64. Times are few, so
// what depends on t alone is done once a time, not once a row. The time branch has no norm.
struct TimeMlpParts {
  std::vector<Dense> x_branch, t_branch, trunk;
  torch::Tensor embeddings;  // [T, width]
  bool norm_after_prelu = false;
};

std::vector<torch::Tensor> parameters(const TimeMlpParts& net);

// -> [N, out]. In training a norm uses the statistics of the batch and moves the running ones. Once
// differentiable, in x and the parameters.
torch::Tensor time_mlp(const TimeMlpParts& net, const torch::Tensor& x, const torch::Tensor& t,
                       bool training);

// For a network of one output and without norms: that output, [N], and its gradient in x, [N, D].
// Both can be differentiated once more, in x and the parameters.
struct ValueAndGradient {
  torch::Tensor value, gradient;
};
ValueAndGradient time_mlp_and_gradient(const TimeMlpParts& net, const torch::Tensor& x,
                                       const torch::Tensor& t);

namespace reference {
// The same in plain tensor operations, differentiable at will.
torch::Tensor dense_chain(const std::vector<Dense>& layers, torch::Tensor x, bool norm_after_prelu,
                          bool training);
torch::Tensor time_mlp(const TimeMlpParts& net, const torch::Tensor& x, const torch::Tensor& t,
                       bool training);
ValueAndGradient time_mlp_and_gradient(const TimeMlpParts& net, const torch::Tensor& x,
                                       const torch::Tensor& t);
}  // namespace reference

}  // namespace ddaebm::ops
