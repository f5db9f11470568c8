#include "ddaebm/ops/dense.h"

#include <array>

#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/dense_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Inputs and gradients in order. What autograd does not follow travels in structs.
enum Input : size_t { kX, kWeight, kTable, kSlope, kDifferentiable };

// How a call of dense_prelu went, for its derivatives.
struct Call {
  Tensor rows;  // Bias::rows
  int64_t table_rows = 0;
  Tensor h;  // before the PReLU
  std::array<bool, kDifferentiable> needed = {};
};

struct Rows {
  Tensor rows;
};

void keep(AutogradContext* ctx, const Tensor& rows, int64_t table_rows) {
  if (rows.defined()) ctx->saved_data["rows"] = rows;
  ctx->saved_data["table_rows"] = table_rows;
}

Call kept(AutogradContext* ctx) {
  Call call;
  if (ctx->saved_data.count("rows") != 0) call.rows = ctx->saved_data["rows"].toTensor();
  call.table_rows = ctx->saved_data["table_rows"].toInt();
  return call;
}

// The first derivatives of dense_prelu as an operator of its own, so that they can be
// differentiated. PReLU is piecewise linear, so h enters them through signs alone, except in the
// slope's. Returns the gradients that are needed, in order.
struct DensePreluGrad : Function<DensePreluGrad> {
  static variable_list forward(AutogradContext* ctx, const Tensor& gy, const Tensor& x,
                               const Tensor& weight, const Tensor& /*table*/, const Tensor& slope,
                               const Call& call) {
    const auto gh = kernels::prelu_backward(gy, call.h, slope);
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({gy, x, weight, slope, call.h, gh});
    keep(ctx, call.rows, call.table_rows);
    variable_list out;
    std::vector<int64_t> which;
    const auto put = [&](Input input, auto gradient) {
      if (!call.needed[input]) return;
      out.push_back(gradient());
      which.push_back(input);
    };
    put(kX, [&] { return gh.mm(weight); });
    put(kWeight, [&] { return gh.t().mm(x); });
    put(kTable, [&] { return kernels::sum_rows(gh, call.rows, call.table_rows); });
    put(kSlope, [&] { return kernels::slope_gradient(gy, call.h); });
    ctx->saved_data["which"] = which;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    const auto &gy = saved[0], &x = saved[1], &weight = saved[2], &slope = saved[3], &h = saved[4],
               &gh = saved[5];
    const Call call = kept(ctx);
    std::array<Tensor, kDifferentiable> out;  // cotangents of dx, dW, dtable, dslope
    const auto which = ctx->saved_data["which"].toIntVector();
    for (size_t i = 0; i < which.size(); ++i) out[static_cast<size_t>(which[i])] = given[i];
    const auto add = [](Tensor& sum, const Tensor& term) {
      sum = sum.defined() ? sum + term : term;
    };
    Tensor d_gh;  // cotangent of gh = gy prelu'(h)
    if (out[kX].defined()) add(d_gh, out[kX].mm(weight.t()));
    if (out[kWeight].defined()) add(d_gh, x.mm(out[kWeight].t()));
    if (out[kTable].defined()) {
      add(d_gh,
          call.rows.defined() ? out[kTable].index_select(0, call.rows) : out[kTable].expand_as(h));
    }
    Tensor d_gy, d_x, d_weight, d_table, d_slope;
    if (d_gh.defined()) {
      d_gy = kernels::prelu_backward(d_gh, h, slope);
      d_slope = kernels::slope_tangent(d_gh, gy, h);
      if (out[kX].defined()) d_weight = gh.t().mm(out[kX]);
      if (out[kWeight].defined()) d_x = gh.mm(out[kWeight]);
    }
    if (out[kSlope].defined()) {
      add(d_gy, out[kSlope] * h.clamp_max(0));
      // dslope is the one gradient that depends on h beyond its sign, and h on x, W and the bias.
      const auto d_h = out[kSlope] * gy * (h <= 0).to(h.scalar_type());
      add(d_x, d_h.mm(weight));
      add(d_weight, d_h.t().mm(x));
      d_table = kernels::sum_rows(d_h, call.rows, call.table_rows);
    }
    return {d_gy, d_x, d_weight, d_table, d_slope, Tensor()};
  }
};

struct DensePrelu : Function<DensePrelu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& table, const Tensor& slope, const Rows& rows) {
    auto h = x.mm(weight.t());
    auto y = kernels::bias_prelu(h, table, rows.rows, slope);
    ctx->save_for_backward({x, weight, table, slope, h});
    keep(ctx, rows.rows, table.size(0));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list out) {
    const auto saved = ctx->get_saved_variables();
    Call call = kept(ctx);
    call.h = saved[4];
    for (size_t i = 0; i < kDifferentiable; ++i) call.needed[i] = ctx->needs_input_grad(i);
    const auto found = DensePreluGrad::apply(out[0], saved[0], saved[1], saved[2], saved[3], call);
    variable_list all(kDifferentiable + 1);
    for (size_t i = 0, k = 0; i < kDifferentiable; ++i) {
      if (call.needed[i]) all[i] = found[k++];
    }
    return all;
  }
};

struct DenseNormPrelu : Function<DenseNormPrelu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& table, const Tensor& slope, const Tensor& scale,
                        const Tensor& shift, const Rows& rows, const BatchNorm& norm) {
    auto h = x.mm(weight.t());
    const auto [y, inverse] =
        kernels::bias_norm_prelu(h, table, rows.rows, scale, shift, norm.running_mean,
                                 norm.running_variance, norm.momentum, norm.eps, slope);
    ctx->save_for_backward({x, weight, slope, scale, shift, h, inverse});
    keep(ctx, rows.rows, table.size(0));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list out) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &slope = saved[2], &scale = saved[3],
               &shift = saved[4], &h = saved[5], &inverse = saved[6];
    const Call call = kept(ctx);
    const auto g = kernels::norm_prelu_backward(out[0], h, inverse, scale, shift, slope);
    return {ctx->needs_input_grad(kX) ? g.h.mm(weight) : Tensor(),
            ctx->needs_input_grad(kWeight) ? g.h.t().mm(x) : Tensor(),
            ctx->needs_input_grad(kTable) ? kernels::sum_rows(g.h, call.rows, call.table_rows)
                                          : Tensor(),
            g.slope,
            g.scale,
            g.shift,
            Tensor(),
            Tensor()};
  }
};

}  // namespace

Tensor dense_prelu(const Tensor& x, const Tensor& weight, const Bias& bias, const Tensor& slope) {
  return DensePrelu::apply(x, weight, bias.table, slope, Rows{bias.rows});
}

Tensor dense_norm_prelu(const Tensor& x, const Tensor& weight, const Bias& bias,
                        const BatchNorm& norm, const Tensor& slope) {
  return DenseNormPrelu::apply(x, weight, bias.table, slope, norm.scale, norm.shift,
                               Rows{bias.rows}, norm);
}

namespace reference {
namespace {

Tensor dense(const Tensor& x, const Tensor& weight, const Bias& bias) {
  return x.mm(weight.t()) +
         (bias.rows.defined() ? bias.table.index_select(0, bias.rows) : bias.table);
}

}  // namespace

Tensor dense_prelu(const Tensor& x, const Tensor& weight, const Bias& bias, const Tensor& slope) {
  return at::prelu(dense(x, weight, bias), slope);
}

Tensor dense_norm_prelu(const Tensor& x, const Tensor& weight, const Bias& bias,
                        const BatchNorm& norm, const Tensor& slope) {
  const auto h = at::batch_norm(dense(x, weight, bias), norm.scale, norm.shift, norm.running_mean,
                                norm.running_variance, /*training=*/true, norm.momentum, norm.eps,
                                /*cudnn_enabled=*/false);
  return at::prelu(h, slope);
}

}  // namespace reference
}  // namespace ddaebm::ops
