#pragma once

#include <vector>

#include <torch/types.h>

#include "ddaebm/ops/bend.h"

namespace ddaebm::ops::kernels {

// What a dense layer does beside its matrix products, without autograd. All matrices are [N, C] and
// contiguous. A bias is row rows[i] of `table` [B, C] for row i, or the one row of `table` [1, C]
// where `rows` is undefined. On a CPU each is one pass over memory, the columns shared out among
// the threads, so that sums do not depend on how many there are; on a GPU each is one kernel, which
// makes the product too where that is small.

// a b, [M, K] [K, C] -> [M, C]. On a CPU by oneDNN, or by LibTorch's library, whose products are
// each of a share of the rows: one that shares a product out by itself waits within it.
torch::Tensor product(const torch::Tensor& a, const torch::Tensor& b);
// The same of N pairs, [N, M, K] [N, K, C] -> `out` [N, M, C], whose rows may lie apart; or added
// to what is there. A thread of a CPU makes whole ones.
enum class Into { empty, sum };
void products(const torch::Tensor& out, const torch::Tensor& a, const torch::Tensor& b,
              Into into = Into::empty);
torch::Tensor products(const torch::Tensor& a, const torch::Tensor& b);

// The matrix a b, not multiplied yet; or a itself where b is undefined, which what adds a bias then
// changes in place.
struct Matrix {
  torch::Tensor a, b;
  torch::Tensor made() const { return b.defined() ? product(a, b) : a; }
};

// h + bias.
torch::Tensor add_bias(const Matrix& h, const torch::Tensor& table, const torch::Tensor& rows);

// h + bias, and prelu of it, and where `after` [A, C] is given, its row after_rows[i] more.
struct Bent {
  torch::Tensor h, y;
};
Bent bias_prelu(const Matrix& h, const torch::Tensor& table, const torch::Tensor& rows,
                const torch::Tensor& slope, const torch::Tensor& after = {},
                const torch::Tensor& after_rows = {});

// h + bias [C] and, where `before` [B, C] is given, its row rows[i]; and SiLU or softplus of it.
Bent bias_bend(const Matrix& h, const torch::Tensor& bias, const torch::Tensor& before,
               const torch::Tensor& rows, Bend bend);
// gh = gy bend'(h) and, where it is given, `more`.
torch::Tensor bend_backward(const Matrix& gy, const torch::Tensor& h, Bend bend,
                            const torch::Tensor& more = {});
// For a cotangent u of that: u bend'(h), which is gy's, and u gy bend''(h), which is h's.
struct BendTwice {
  torch::Tensor of_gy, of_h;
};
BendTwice bend_backward_twice(const Matrix& u, const torch::Tensor& gy, const torch::Tensor& h,
                              Bend bend);

// gh = gy prelu'(h).
torch::Tensor prelu_backward(const Matrix& gy, const torch::Tensor& h, const torch::Tensor& slope);

// A slope's gradient comes in parts [P], whose sum it is. This makes it [1] for all of them in one
// go; what is undefined stays so.
void add_up(const std::vector<torch::Tensor*>& slopes);

// The same with the gradients of the table, sums of gh, and of the slope, sum gy min(h, 0). Without
// a PReLU h and slope are undefined, and gh is gy.
struct PreluGradients {
  torch::Tensor h, table, slope;
};
PreluGradients bias_prelu_backward(const Matrix& gy, const torch::Tensor& h,
                                   const torch::Tensor& slope, const torch::Tensor& rows,
                                   int64_t table_rows);

// h = (u + weight[i] bias) prelu'(h); the gradients of the table, sums of weight[i] dy prelu'(h),
// and of the slope, the sum of dy (u + weight[i] bias) where h <= 0. `weight` is [N]. Without a
// PReLU `slope` is undefined, and h is not looked at.
PreluGradients bias_prelu_tangent(const Matrix& u, const torch::Tensor& weight,
                                  const torch::Tensor& table, const torch::Tensor& rows,
                                  const torch::Tensor& h, const torch::Tensor& slope,
                                  const torch::Tensor& dy);

// Sum of the rows of g that used each row of the table: [B, C].
torch::Tensor sum_rows(const torch::Tensor& g, const torch::Tensor& rows, int64_t table_rows);

// h + bias, normalised by its columns' statistics; prelu(scale normalised + shift); and one over
// the columns' deviation [C]. Moves the running statistics. An undefined table adds nothing, an
// undefined slope bends nothing.
struct NormParts {
  torch::Tensor scale, shift, running_mean, running_variance;  // [C]
  double momentum, eps;
};
struct Normalised {
  torch::Tensor h, y, inverse;
};
Normalised bias_norm_prelu(const Matrix& h, const torch::Tensor& table, const torch::Tensor& rows,
                           const NormParts& norm, const torch::Tensor& slope);

// The gradients of that, given normalised h: of h before the norm, of scale, shift and slope, and
// of the table, zero where all rows share one bias: the norm takes it away.
struct NormPreluGradients {
  torch::Tensor h, scale, shift, slope, table;
};
NormPreluGradients norm_prelu_backward(const Matrix& gy, const torch::Tensor& normalised,
                                       const torch::Tensor& inverse_deviation,
                                       const torch::Tensor& scale, const torch::Tensor& shift,
                                       const torch::Tensor& slope, const torch::Tensor& rows,
                                       int64_t table_rows);

}  // namespace ddaebm::ops::kernels
