#include "ddaebm/ops/row_sums.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops {
namespace {

using gpu::RowSum;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// By the formula.
Tensor plain(const RowSum& s) {
  switch (s.kind) {
    case RowSumKind::weighted_squares:
      return reference::weighted_squares(s.b, s.a, {s.scale, s.weight, s.added});
    case RowSumKind::gaussian_nll:
      return reference::gaussian_nll(s.a, s.b, s.c);
    case RowSumKind::gaussian_kl:
      return reference::gaussian_kl(s.b, s.c);
  }
  return {};
}

struct Fused : Function<Fused> {
  // `of`: b and, where there is one, c.
  static Tensor forward(AutogradContext* ctx, at::TensorList /*of*/, const RowSum& s) {
    ctx->save_for_backward({s.b, s.c, s.a, s.scale, s.weight, s.added});
    ctx->saved_data["kind"] = static_cast<int64_t>(s.kind);
    return gpu::row_sum(s);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const auto saved = ctx->get_saved_variables();
    const RowSum s{static_cast<RowSumKind>(ctx->saved_data["kind"].toInt()),
                   saved[2],
                   saved[0],
                   saved[1],
                   saved[3],
                   saved[4],
                   saved[5]};
    if (!torch::GradMode::is_enabled()) {
      const auto [gb, gc] = gpu::row_sum_backward(given[0], s);
      return s.c.defined() ? variable_list{gb, gc, Tensor()} : variable_list{gb, Tensor()};
    }
    variable_list inputs = {s.b};
    if (s.c.defined()) inputs.push_back(s.c);
    auto found = torch::autograd::grad({plain(s)}, inputs, {given[0]}, /*retain_graph=*/true,
                                       /*create_graph=*/true, /*allow_unused=*/true);
    found.emplace_back();
    return found;
  }
};

Tensor row_sum(const RowSum& s) {
  const bool fused = gpu::takes(s.b) && gpu::takes_rows(s);
  if (!fused) return plain(s);
  const auto of = s.c.defined() ? variable_list{s.b, s.c} : variable_list{s.b};
  return Fused::apply(at::TensorList(of), s);
}

}  // namespace

namespace reference {

Tensor weighted_squares(const Tensor& x, const Tensor& target, const OfRow& row) {
  const auto beside_x = [&](const Tensor& values) {
    std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
    shape[0] = x.size(0);
    return values.reshape(shape);
  };
  auto error = row.scale.defined() ? beside_x(row.scale) * x : x;
  if (target.defined()) error = error - target;
  auto sum = error.square().flatten(1).sum(1);
  if (row.weight.defined()) sum = row.weight * sum;
  if (!row.added.defined()) return sum;
  const int64_t columns = x.numel() / std::max<int64_t>(x.size(0), 1);
  return sum + static_cast<double>(columns) * row.added;
}

Tensor gaussian_nll(const Tensor& z, const Tensor& mean, const Tensor& log_variance) {
  return 0.5 * (log_variance + (z - mean).square() / (1e-6 + log_variance.exp())).sum(1);
}

Tensor gaussian_kl(const Tensor& mean, const Tensor& log_variance) {
  return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1.0).sum(1);
}

}  // namespace reference

Tensor weighted_squares(const Tensor& x, const Tensor& target, const OfRow& row) {
  return row_sum({RowSumKind::weighted_squares, target, x, {}, row.scale, row.weight, row.added});
}

Tensor gaussian_nll(const Tensor& z, const Tensor& mean, const Tensor& log_variance) {
  return row_sum({RowSumKind::gaussian_nll, z, mean, log_variance, {}, {}, {}});
}

Tensor gaussian_kl(const Tensor& mean, const Tensor& log_variance) {
  return row_sum({RowSumKind::gaussian_kl, {}, mean, log_variance, {}, {}, {}});
}

}  // namespace ddaebm::ops
