#include "ddaebm/ops/dense_kernels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "ddaebm/ops/gpu.h"
#include "ddaebm/ops/vectorise.h"

namespace ddaebm::ops::kernels {
namespace {

// Calls body(first, last) for shares of the columns.
template <class F>
void for_columns(int64_t columns, int64_t rows, const F& body) {
  const int64_t grain = std::max<int64_t>(16, 8192 / std::max<int64_t>(rows, 1));
  at::parallel_for(0, columns, grain, body);
}

// The loops over a row's columns are functions of their own: only so does the compiler take
// `restrict` at its word, and vectorises.

template <class T>
inline T prelu(T h, T slope) {
  return std::max(h, T(0)) + slope * std::min(h, T(0));
}

template <class T>
DDAEBM_VECTORISE void add_bias_prelu(int64_t n, const T* __restrict bias, T slope, T* __restrict h,
                                     T* __restrict y) {
  for (int64_t j = 0; j < n; ++j) {
    h[j] += bias[j];
    y[j] = prelu(h[j], slope);
  }
}

template <class T>
DDAEBM_VECTORISE void times_prelu_slope(int64_t n, const T* __restrict g, const T* __restrict h,
                                        T slope, T* __restrict out) {
  for (int64_t j = 0; j < n; ++j) {
    const T below = g[j] * slope;
    out[j] = h[j] > 0 ? g[j] : below;
  }
}

template <class T>
DDAEBM_VECTORISE void prelu_backward_row(int64_t n, const T* __restrict g, const T* __restrict h,
                                         T slope, T* __restrict g_table, T* __restrict g_slope,
                                         T* __restrict out) {
  for (int64_t j = 0; j < n; ++j) {
    const T below = g[j] * slope;
    const T gh = h[j] > 0 ? g[j] : below;
    g_slope[j] += g[j] * std::min(h[j], T(0));
    g_table[j] += gh;
    out[j] = gh;
  }
}

template <class T>
DDAEBM_VECTORISE void prelu_tangent_row(int64_t n, T weight, const T* __restrict bias,
                                        const T* __restrict h, const T* __restrict dy, T slope,
                                        T* __restrict g_table, T* __restrict g_slope,
                                        T* __restrict u) {
  for (int64_t j = 0; j < n; ++j) {
    const T v = u[j] + weight * bias[j];
    const T factor = h[j] > 0 ? T(1) : slope;
    const T product = dy[j] * v;
    g_slope[j] += h[j] > 0 ? T(0) : product;
    g_table[j] += weight * dy[j] * factor;
    u[j] = v * factor;
  }
}

template <class T>
DDAEBM_VECTORISE void linear_tangent_row(int64_t n, T weight, const T* __restrict bias,
                                         const T* __restrict dy, T* __restrict g_table,
                                         T* __restrict u) {
  for (int64_t j = 0; j < n; ++j) {
    u[j] += weight * bias[j];
    g_table[j] += weight * dy[j];
  }
}

template <class T>
DDAEBM_VECTORISE void add_row(int64_t n, const T* __restrict g, T* __restrict sums) {
  for (int64_t j = 0; j < n; ++j) sums[j] += g[j];
}

template <class T>
DDAEBM_VECTORISE void add_square_centred(int64_t n, const T* __restrict mean, T* __restrict h,
                                         T* __restrict squares) {
  for (int64_t j = 0; j < n; ++j) {
    h[j] -= mean[j];
    squares[j] += h[j] * h[j];
  }
}

template <class T>
DDAEBM_VECTORISE void scale_prelu(int64_t n, const T* __restrict inverse, const T* __restrict scale,
                                  const T* __restrict shift, T slope, T* __restrict h,
                                  T* __restrict y) {
  for (int64_t j = 0; j < n; ++j) {
    h[j] *= inverse[j];
    y[j] = prelu(h[j] * scale[j] + shift[j], slope);
  }
}

template <class T>
DDAEBM_VECTORISE void norm_backward_sums(int64_t n, const T* __restrict g, const T* __restrict h,
                                         const T* __restrict scale, const T* __restrict shift,
                                         T slope, T* __restrict g_slope, T* __restrict g_scale,
                                         T* __restrict g_shift, T* __restrict out) {
  for (int64_t j = 0; j < n; ++j) {
    const T u = h[j] * scale[j] + shift[j];
    const T below = g[j] * slope;
    const T gu = u > 0 ? g[j] : below;
    g_slope[j] += g[j] * std::min(u, T(0));
    g_shift[j] += gu;
    g_scale[j] += gu * h[j];
    out[j] = gu;
  }
}

template <class T>
DDAEBM_VECTORISE void norm_backward_input(int64_t n, const T* __restrict h,
                                          const T* __restrict factor, const T* __restrict g_scale,
                                          const T* __restrict g_shift, T share, T* __restrict out) {
  for (int64_t j = 0; j < n; ++j) {
    out[j] = (out[j] - share * (g_shift[j] + h[j] * g_scale[j])) * factor[j];
  }
}

// The bias row of each input row.
template <class T>
struct BiasRows {
  BiasRows(const torch::Tensor& table_, const torch::Tensor& rows_)
      : table(table_.data_ptr<T>()),
        rows(rows_.defined() ? rows_.data_ptr<int64_t>() : nullptr),
        columns(table_.size(1)) {}
  int64_t offset(int64_t i) const { return rows != nullptr ? rows[i] * columns : 0; }
  const T* operator[](int64_t i) const { return table + offset(i); }
  const T* table;
  const int64_t* rows;
  int64_t columns;
};

template <class T>
T sum(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), T(0));
}

template <class T>
T slope_or_one(const torch::Tensor& slope) {
  return slope.defined() ? *slope.data_ptr<T>() : T(1);
}

}  // namespace

torch::Tensor add_bias(const Matrix& h, const torch::Tensor& table, const torch::Tensor& rows) {
  if (!h.a.is_cpu()) return gpu::add_bias(h, table, rows);
  return h.made().add_(rows.defined() ? table.index_select(0, rows) : table);
}

Bent bias_prelu(const Matrix& matrix, const torch::Tensor& table, const torch::Tensor& rows,
                const torch::Tensor& slope, const torch::Tensor& after,
                const torch::Tensor& after_rows) {
  if (!matrix.a.is_cpu()) return gpu::bias_prelu(matrix, table, rows, slope, after, after_rows);
  auto h = matrix.made();
  auto y = torch::empty_like(h);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "bias_prelu", [&] {
    const BiasRows<scalar_t> bias(table, rows);
    std::optional<BiasRows<scalar_t>> more;
    if (after.defined()) more.emplace(after, after_rows);
    const scalar_t a = *slope.data_ptr<scalar_t>();
    const int64_t n = h.size(0);
    const int64_t c = h.size(1);
    auto* hp = h.data_ptr<scalar_t>();
    auto* yp = y.data_ptr<scalar_t>();
    for_columns(c, n, [&](int64_t first, int64_t last) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        add_bias_prelu(last - first, bias[i] + first, a, hp + at, yp + at);
        if (more) add_row(last - first, (*more)[i] + first, yp + at);
      }
    });
  });
  return {h, y};
}

// Of smooth bends LibTorch's own loops are as good.
Bent bias_bend(const Matrix& matrix, const torch::Tensor& bias, const torch::Tensor& before,
               const torch::Tensor& rows, Bend bend) {
  if (!matrix.a.is_cpu()) return gpu::bias_bend(matrix, bias, before, rows, bend);
  auto h = matrix.made().add_(bias);
  if (before.defined()) h.add_(before.index_select(0, rows));
  return {h, bend == Bend::silu ? at::silu(h) : at::softplus(h)};
}

torch::Tensor bend_backward(const Matrix& matrix, const torch::Tensor& h, Bend bend,
                            const torch::Tensor& more) {
  if (!h.is_cpu()) return gpu::bend_backward(matrix, h, bend, more);
  const auto gy = matrix.made();
  auto gh = bend == Bend::silu ? at::silu_backward(gy, h) : at::sigmoid(h).mul_(gy);
  return more.defined() ? gh.add_(more) : gh;
}

BendTwice bend_backward_twice(const Matrix& matrix, const torch::Tensor& gy, const torch::Tensor& h,
                              Bend bend) {
  if (!h.is_cpu()) return gpu::bend_backward_twice(matrix, gy, h, bend);
  const auto u = matrix.made();
  const auto s = at::sigmoid(h);
  const auto slope_of_s = s * (1 - s);
  if (bend == Bend::softplus) return {u * s, u * gy * slope_of_s};
  return {u * (s + h * slope_of_s), u * gy * slope_of_s * (2 + h * (1 - 2 * s))};
}

torch::Tensor prelu_backward(const Matrix& matrix, const torch::Tensor& h,
                             const torch::Tensor& slope) {
  if (!h.is_cpu()) return gpu::prelu_backward(matrix, h, slope);
  const auto gy = matrix.made();
  auto gh = torch::empty_like(h);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "prelu_backward", [&] {
    const scalar_t a = *slope.data_ptr<scalar_t>();
    const auto* gp = gy.data_ptr<scalar_t>();
    const auto* hp = h.data_ptr<scalar_t>();
    auto* out = gh.data_ptr<scalar_t>();
    at::parallel_for(0, h.numel(), 16384, [&](int64_t first, int64_t last) {
      times_prelu_slope(last - first, gp + first, hp + first, a, out + first);
    });
  });
  return gh;
}

void add_up(const std::vector<torch::Tensor*>& slopes) {
  std::vector<torch::Tensor> parts;
  for (const auto* slope : slopes) {
    if (slope->defined() && slope->numel() > 1) parts.push_back(*slope);
  }
  if (parts.empty()) return;
  const auto sums = gpu::sums(parts).split(1);
  size_t next = 0;
  for (auto* slope : slopes) {
    if (slope->defined() && slope->numel() > 1) *slope = sums[next++];
  }
}

PreluGradients bias_prelu_backward(const Matrix& matrix, const torch::Tensor& h,
                                   const torch::Tensor& slope, const torch::Tensor& rows,
                                   int64_t table_rows) {
  if (!matrix.a.is_cpu()) return gpu::bias_prelu_backward(matrix, h, slope, rows, table_rows);
  const auto gy = matrix.made();
  if (!slope.defined()) return {gy, sum_rows(gy, rows, table_rows), {}};
  const int64_t n = h.size(0);
  const int64_t c = h.size(1);
  PreluGradients out{torch::empty_like(h), torch::zeros({table_rows, c}, h.options()),
                     torch::empty({1}, h.options())};
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "bias_prelu_backward", [&] {
    const scalar_t a = *slope.data_ptr<scalar_t>();
    const BiasRows<scalar_t> table(out.table, rows);
    const auto* gp = gy.data_ptr<scalar_t>();
    const auto* hp = h.data_ptr<scalar_t>();
    auto* table_sums = out.table.data_ptr<scalar_t>();
    auto* gh = out.h.data_ptr<scalar_t>();
    std::vector<scalar_t> slopes(static_cast<size_t>(c), 0);
    for_columns(c, n, [&](int64_t first, int64_t last) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        prelu_backward_row(last - first, gp + at, hp + at, a, table_sums + table.offset(i) + first,
                           slopes.data() + first, gh + at);
      }
    });
    *out.slope.data_ptr<scalar_t>() = sum(slopes);
  });
  return out;
}

PreluGradients bias_prelu_tangent(const Matrix& matrix, const torch::Tensor& weight,
                                  const torch::Tensor& table, const torch::Tensor& rows,
                                  const torch::Tensor& h, const torch::Tensor& slope,
                                  const torch::Tensor& dy) {
  if (!dy.is_cpu()) return gpu::bias_prelu_tangent(matrix, weight, table, rows, h, slope, dy);
  const auto u = matrix.made();
  const bool bent = slope.defined();
  const int64_t n = u.size(0);
  const int64_t c = u.size(1);
  PreluGradients out{u, torch::zeros_like(table),
                     bent ? torch::empty({1}, u.options()) : torch::Tensor()};
  AT_DISPATCH_FLOATING_TYPES(u.scalar_type(), "bias_prelu_tangent", [&] {
    const BiasRows<scalar_t> bias(table, rows);
    const scalar_t a = slope_or_one<scalar_t>(slope);
    const auto* weights = weight.data_ptr<scalar_t>();
    const auto* hp = bent ? h.data_ptr<scalar_t>() : nullptr;
    const auto* dp = dy.data_ptr<scalar_t>();
    auto* up = u.data_ptr<scalar_t>();
    auto* table_sums = out.table.data_ptr<scalar_t>();
    std::vector<scalar_t> slopes(static_cast<size_t>(c), 0);
    for_columns(c, n, [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        auto* sums = table_sums + bias.offset(i) + first;
        if (bent) {
          prelu_tangent_row(width, weights[i], bias[i] + first, hp + at, dp + at, a, sums,
                            slopes.data() + first, up + at);
        } else {
          linear_tangent_row(width, weights[i], bias[i] + first, dp + at, sums, up + at);
        }
      }
    });
    if (bent) *out.slope.data_ptr<scalar_t>() = sum(slopes);
  });
  return out;
}

torch::Tensor sum_rows(const torch::Tensor& g, const torch::Tensor& rows, int64_t table_rows) {
  if (!g.is_cpu()) return gpu::sum_rows(g, rows, table_rows);
  auto sums = torch::zeros({table_rows, g.size(1)}, g.options());
  AT_DISPATCH_FLOATING_TYPES(g.scalar_type(), "sum_rows", [&] {
    const int64_t n = g.size(0);
    const int64_t c = g.size(1);
    const auto* gp = g.data_ptr<scalar_t>();
    const auto* index = rows.defined() ? rows.data_ptr<int64_t>() : nullptr;
    auto* sp = sums.data_ptr<scalar_t>();
    for_columns(c, n, [&](int64_t first, int64_t last) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = index != nullptr ? index[i] : 0;
        add_row(last - first, gp + i * c + first, sp + row * c + first);
      }
    });
  });
  return sums;
}

Normalised bias_norm_prelu(const Matrix& matrix, const torch::Tensor& table,
                           const torch::Tensor& rows, const NormParts& norm,
                           const torch::Tensor& slope) {
  if (!matrix.a.is_cpu()) return gpu::bias_norm_prelu(matrix, table, rows, norm, slope);
  auto h = matrix.made();
  const int64_t n = h.size(0);
  const double unbiased = static_cast<double>(n) / static_cast<double>(std::max<int64_t>(n - 1, 1));
  auto y = torch::empty_like(h);
  auto inverse = torch::empty_like(norm.scale);
  AT_DISPATCH_FLOATING_TYPES(h.scalar_type(), "bias_norm_prelu", [&] {
    std::optional<BiasRows<scalar_t>> bias;
    if (table.defined()) bias.emplace(table, rows);
    const int64_t c = h.size(1);
    const scalar_t a = slope_or_one<scalar_t>(slope);
    const auto* gain = norm.scale.data_ptr<scalar_t>();
    const auto* offset = norm.shift.data_ptr<scalar_t>();
    auto* mean_out = norm.running_mean.data_ptr<scalar_t>();
    auto* variance_out = norm.running_variance.data_ptr<scalar_t>();
    auto* hp = h.data_ptr<scalar_t>();
    auto* yp = y.data_ptr<scalar_t>();
    auto* inv = inverse.data_ptr<scalar_t>();
    for_columns(c, n, [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      std::vector<scalar_t> mean(static_cast<size_t>(width), 0);
      std::vector<scalar_t> squares(static_cast<size_t>(width), 0);
      for (int64_t i = 0; i < n; ++i) {
        if (bias) add_row(width, (*bias)[i] + first, hp + i * c + first);
        add_row(width, hp + i * c + first, mean.data());
      }
      for (scalar_t& m : mean) m /= static_cast<scalar_t>(n);
      for (int64_t i = 0; i < n; ++i) {
        add_square_centred(width, mean.data(), hp + i * c + first, squares.data());
      }
      for (int64_t j = first; j < last; ++j) {
        const double m = mean[static_cast<size_t>(j - first)];
        const double v = squares[static_cast<size_t>(j - first)] / static_cast<double>(n);
        inv[j] = static_cast<scalar_t>(1.0 / std::sqrt(v + norm.eps));
        mean_out[j] =
            static_cast<scalar_t>((1.0 - norm.momentum) * mean_out[j] + norm.momentum * m);
        variance_out[j] = static_cast<scalar_t>((1.0 - norm.momentum) * variance_out[j] +
                                                norm.momentum * v * unbiased);
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        scale_prelu(width, inv + first, gain + first, offset + first, a, hp + at, yp + at);
      }
    });
  });
  return {h, y, inverse};
}

// With u = scale h + shift and gu = gy prelu'(u):
//   d shift = sum gu, d scale = sum gu h, d slope = sum gy min(u, 0),
//   d input = scale / deviation (gu - d shift / N - h d scale / N).
NormPreluGradients norm_prelu_backward(const Matrix& matrix, const torch::Tensor& normalised,
                                       const torch::Tensor& inverse_deviation,
                                       const torch::Tensor& scale, const torch::Tensor& shift,
                                       const torch::Tensor& slope, const torch::Tensor& rows,
                                       int64_t table_rows) {
  if (!normalised.is_cpu()) {
    return gpu::norm_prelu_backward(matrix, normalised, inverse_deviation, scale, shift, slope,
                                    rows, table_rows);
  }
  const auto gy = matrix.made();
  const int64_t n = normalised.size(0);
  const double share = 1.0 / static_cast<double>(n);
  NormPreluGradients out{torch::empty_like(normalised),
                         torch::zeros_like(scale),
                         torch::zeros_like(scale),
                         slope.defined() ? torch::empty_like(slope) : torch::Tensor(),
                         {}};
  AT_DISPATCH_FLOATING_TYPES(gy.scalar_type(), "norm_prelu_backward", [&] {
    const int64_t c = normalised.size(1);
    const scalar_t a = slope_or_one<scalar_t>(slope);
    const auto* gp = gy.data_ptr<scalar_t>();
    const auto* hp = normalised.data_ptr<scalar_t>();
    const auto* gain = scale.data_ptr<scalar_t>();
    const auto* offset = shift.data_ptr<scalar_t>();
    const auto* inv = inverse_deviation.data_ptr<scalar_t>();
    auto* out_h = out.h.data_ptr<scalar_t>();
    auto* g_scale = out.scale.data_ptr<scalar_t>();
    auto* g_shift = out.shift.data_ptr<scalar_t>();
    std::vector<scalar_t> slopes(static_cast<size_t>(c), 0);
    for_columns(c, n, [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        norm_backward_sums(width, gp + at, hp + at, gain + first, offset + first, a,
                           slopes.data() + first, g_scale + first, g_shift + first, out_h + at);
      }
      std::vector<scalar_t> factor(static_cast<size_t>(width));
      for (int64_t j = 0; j < width; ++j) {
        factor[static_cast<size_t>(j)] = gain[first + j] * inv[first + j];
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = i * c + first;
        norm_backward_input(width, hp + at, factor.data(), g_scale + first, g_shift + first,
                            static_cast<scalar_t>(share), out_h + at);
      }
    });
    if (slope.defined()) *out.slope.data_ptr<scalar_t>() = sum(slopes);
  });
  out.table = rows.defined() ? sum_rows(out.h, rows, table_rows)
                             : torch::zeros({table_rows, scale.size(0)}, scale.options());
  return out;
}

}  // namespace ddaebm::ops::kernels
