#include "ddaebm/ops/conv.h"

#include <array>
#include <tuple>
#include <vector>

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/dense_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Shapes and strides that all three maps of one convolution share.
struct Geometry {
  ConvShape shape;
  std::vector<int64_t> x, weight;  // sizes
};

// A convolution is bilinear: with y = forward(x, w), <g, y> is a sum over triples g x w, and each
// of the three maps below is that sum's derivative in one of them. So each one's derivatives are
// the other two.
Tensor forward(const Tensor& x, const Tensor& w, at::TensorList bias, const Geometry& at);
Tensor of_data(const Tensor& g, const Tensor& w, const Geometry& at);
Tensor of_weight(const Tensor& g, const Tensor& x, const Geometry& at);

struct Saved : torch::CustomClassHolder {
  explicit Saved(Geometry given) : geometry(std::move(given)) {}
  Geometry geometry;
};

void keep(AutogradContext* ctx, const Tensor& a, const Tensor& b, const Geometry& at) {
  ctx->save_for_backward({a, b});
  ctx->saved_data["geometry"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(at));
}

const Geometry& kept(AutogradContext* ctx) {
  return static_cast<const Saved&>(*ctx->saved_data["geometry"].toCapsule()).geometry;
}

// One by one pixel: a product of all pixels' rows [N H W, C] with a matrix. On a CPU by ours, since
// LibTorch's is slow on a single thread. A trace sees LibTorch's.
bool is_product(const Tensor& x, const Geometry& at) {
  const bool type = x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble;
  return type && x.is_cpu() && at.weight[2] == 1 && at.weight[3] == 1 && at.shape.stride == 1 &&
         at.shape.padding == 0 && !at::tracer::impl::is_dispatch_enabled();
}
Tensor rows_of(const Tensor& image) {
  return image.permute({0, 2, 3, 1}).reshape({-1, image.size(1)});
}
Tensor image_of(const Tensor& rows, const Tensor& like) {
  return rows.view({like.size(0), like.size(2), like.size(3), rows.size(1)}).permute({0, 3, 1, 2});
}

// LibTorch's one call for all gradients; those not asked for come back undefined.
std::tuple<Tensor, Tensor, Tensor> gradients(const Tensor& g, const Tensor& x, const Tensor& w,
                                             const Geometry& at, std::array<bool, 3> wanted) {
  if (is_product(g, at)) {
    const auto rows = rows_of(g);
    return {wanted[0] ? image_of(kernels::product(rows, w.flatten(1)), g) : Tensor(),
            wanted[1] ? kernels::product(rows.t(), rows_of(x)).view(at.weight) : Tensor(),
            wanted[2] ? rows.sum(0) : Tensor()};
  }
  const std::vector<int64_t> bias = {at.weight[0]};
  const std::vector<int64_t> stride(2, at.shape.stride);
  const std::vector<int64_t> padding(2, at.shape.padding);
  const std::vector<int64_t> one = {1, 1};
  const std::vector<int64_t> zero = {0, 0};
  return at::convolution_backward(g, x, w, bias, stride, padding, one, /*transposed=*/false, zero,
                                  /*groups=*/1, wanted);
}

// Stands for a tensor of which only shape, type and layout matter. It has memory, since LibTorch
// would copy one without into an order of its liking.
Tensor shape_only(const std::vector<int64_t>& shape, const Tensor& like) {
  return at::empty(shape, like.options(), like.suggest_memory_format());
}

struct Forward : Function<Forward> {
  // A list, since LibTorch 1.13 takes no undefined tensors.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, at::TensorList bias,
                        const Geometry& at) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    keep(ctx, x, w, at);
    const std::vector<int64_t> stride(2, at.shape.stride);
    const std::vector<int64_t> padding(2, at.shape.padding);
    ctx->saved_data["bias"] = !bias.empty();
    const auto given = bias.empty() ? c10::optional<Tensor>() : bias[0];
    if (is_product(x, at)) {
      const auto rows = kernels::product(rows_of(x), w.flatten(1).t());
      return image_of(given ? rows.add_(*given) : rows, x);
    }
    return at::convolution(x, w, given, stride, padding, {1, 1}, false, {0, 0}, 1);
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    const Geometry& at = kept(ctx);
    const Tensor& g = given[0];
    const bool bias = ctx->saved_data["bias"].toBool();
    const std::array<bool, 3> wanted = {ctx->needs_input_grad(0), ctx->needs_input_grad(1),
                                        bias && ctx->needs_input_grad(2)};
    variable_list found(bias ? 4 : 3);
    if (!torch::GradMode::is_enabled()) {
      Tensor of_bias;
      std::tie(found[0], found[1], of_bias) = gradients(g, saved[0], saved[1], at, wanted);
      if (bias) found[2] = of_bias;
      return found;
    }
    if (wanted[0]) found[0] = of_data(g, saved[1], at);
    if (wanted[1]) found[1] = of_weight(g, saved[0], at);
    if (wanted[2]) found[2] = g.sum(at::IntArrayRef({0, 2, 3}));
    return found;
  }
};

struct OfData : Function<OfData> {
  static Tensor forward(AutogradContext* ctx, const Tensor& g, const Tensor& w,
                        const Geometry& at) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    keep(ctx, g, w, at);
    return std::get<0>(gradients(g, shape_only(at.x, g), w, at, {true, false, false}));
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    const Geometry& at = kept(ctx);
    return {ctx->needs_input_grad(0) ? ops::forward(given[0], saved[1], {}, at) : Tensor(),
            ctx->needs_input_grad(1) ? of_weight(saved[0], given[0], at) : Tensor(), Tensor()};
  }
};

struct OfWeight : Function<OfWeight> {
  static Tensor forward(AutogradContext* ctx, const Tensor& g, const Tensor& x,
                        const Geometry& at) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    keep(ctx, g, x, at);
    return std::get<1>(gradients(g, x, shape_only(at.weight, g), at, {false, true, false}));
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    const Geometry& at = kept(ctx);
    return {ctx->needs_input_grad(0) ? ops::forward(saved[1], given[0], {}, at) : Tensor(),
            ctx->needs_input_grad(1) ? of_data(saved[0], given[0], at) : Tensor(), Tensor()};
  }
};

Tensor forward(const Tensor& x, const Tensor& w, at::TensorList bias, const Geometry& at) {
  return Forward::apply(x, w, bias, at);
}
Tensor of_data(const Tensor& g, const Tensor& w, const Geometry& at) {
  return OfData::apply(g, w, at);
}
Tensor of_weight(const Tensor& g, const Tensor& x, const Geometry& at) {
  return OfWeight::apply(g, x, at);
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, ConvShape shape) {
  const Geometry at{shape, x.sizes().vec(), weight.sizes().vec()};
  return bias.defined() ? forward(x, weight, {bias}, at) : forward(x, weight, {}, at);
}

Tensor reference::conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         ConvShape shape) {
  return at::conv2d(x, weight, bias, shape.stride, shape.padding);
}

}  // namespace ddaebm::ops
