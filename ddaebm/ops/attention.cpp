#include "ddaebm/ops/attention.h"

#include <tuple>

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/dense_kernels.h"
#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops {
namespace {

using kernels::Into;
using kernels::products;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Pixels as rows: [N, C, H, W] <-> [N, P, C], without a copy where channels are last.
Tensor rows_of(const Tensor& image) { return image.flatten(2).transpose(1, 2).contiguous(); }
Tensor image_of(const Tensor& rows, const Tensor& like) {
  return rows.transpose(1, 2).reshape(like.sizes());
}

// Products of all rows [N, P, .] with one matrix, and of the transposed rows with rows.
Tensor times(const Tensor& rows, const Tensor& matrix) {
  return kernels::product(rows.flatten(0, 1), matrix)
      .view({rows.size(0), rows.size(1), matrix.size(1)});
}
Tensor across(const Tensor& a, const Tensor& b) {
  return kernels::product(a.flatten(0, 1).t(), b.flatten(0, 1));
}
Tensor turned(const Tensor& x) { return x.transpose(1, 2); }

// Queries, keys and values in one tensor [N, P, 3 C], and each alone.
struct Three {
  explicit Three(Tensor all_) : all(std::move(all_)) {
    const int64_t width = all.size(2) / 3;
    q = all.narrow(2, 0, width);
    k = all.narrow(2, width, width);
    v = all.narrow(2, 2 * width, width);
  }
  Tensor all, q, k, v;
};

Tensor sum_of_rows(const Tensor& rows) {
  return gpu::takes(rows) ? gpu::sums_over_pixels(rows).sum(0).to(rows.scalar_type())
                          : rows.sum(at::IntArrayRef({0, 1}));
}

// Where gs = a (ga - sum a ga) is the gradient of a softmax a, and h a cotangent of it, b one of a:
// the cotangents of ga, and of what the softmax was taken of.
std::tuple<Tensor, Tensor> softmax_twice(const Tensor& a, const Tensor& h, const Tensor& gs,
                                         const Tensor& b) {
  if (gpu::takes(a)) return gpu::softmax_twice(a, h, gs, b);
  const auto centred = h - (a * h).sum(-1, /*keepdim=*/true);
  const auto all = centred * gs + a * b;
  return {a * centred, all - a * all.sum(-1, /*keepdim=*/true)};
}

// With rows x and their gradients g, S = q k^T, a = softmax(S), o = a v, y = o out:
//   go = g out^T, ga = go v^T, gs = a (ga - sum a ga),
//   gq = gs k, gk = gs^T q, gv = a^T go, gx = (gq gk gv) map^T.
struct Backward : Function<Backward> {
  // The bias is there for its derivatives alone.
  static variable_list forward(AutogradContext* ctx, const Tensor& given, const Tensor& x,
                               const Tensor& map, const Tensor&, const Tensor& out,
                               const Tensor& qkv, const Tensor& a, const Tensor& o, bool all) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto g = given.contiguous();
    const Three of(qkv);
    const auto go = times(g, out.t());
    const auto gs = at::_softmax_backward_data(products(go, turned(of.v)), a, -1, a.scalar_type());
    Three found(at::empty_like(qkv));
    products(found.q, gs, of.k);
    products(found.k, turned(gs), of.q);
    products(found.v, turned(a), go);
    ctx->save_for_backward({g, x, map, out, qkv, a, o, go, gs, found.all});
    ctx->set_materialize_grads(false);
    variable_list results = {times(found.all, map.t())};
    if (all) {
      results.push_back(across(x, found.all));
      results.push_back(sum_of_rows(found.all));
      results.push_back(across(o, g));
    }
    return results;
  }

  // The gradients of <ux, gx> + <umap, gmap> + <ubias, gbias> + <uout, gout>. `u` collects what the
  // first three are in gq, gk, gv; then each line above is gone through backwards.
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    TORCH_CHECK(!torch::GradMode::is_enabled(),
                "attention can be differentiated twice, not three times; see ops::reference");
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto saved = ctx->get_saved_variables();
    const auto& [g, x, map, out] = std::tie(saved[0], saved[1], saved[2], saved[3]);
    const auto& [a, o, go, gs] = std::tie(saved[5], saved[6], saved[7], saved[8]);
    const Three of(saved[4]);
    const Tensor& gqkv = saved[9];
    given.resize(4);
    const auto& [ux, umap, ubias, uout] = std::tie(given[0], given[1], given[2], given[3]);

    auto cotangents = ux.defined() ? times(ux, map) : torch::zeros_like(gqkv);
    if (umap.defined()) cotangents = cotangents + times(x, umap);
    if (ubias.defined()) cotangents = cotangents + ubias;
    const Three u(cotangents);
    auto h = products(u.q, turned(of.k));
    products(h, of.q, turned(u.k), Into::sum);
    auto b = products(go, turned(u.v));
    Tensor of_o;
    if (uout.defined()) {
      of_o = times(g, uout.t());
      products(b, of_o, turned(of.v), Into::sum);
    }
    const auto [of_ga, of_s] = softmax_twice(a, h, gs, b);
    auto of_go = products(a, u.v);
    products(of_go, of_ga, of.v, Into::sum);
    Three found(at::empty_like(gqkv));
    products(found.q, of_s, of.k);
    products(found.q, gs, u.k, Into::sum);
    products(found.k, turned(of_s), of.q);
    products(found.k, turned(gs), u.q, Into::sum);
    products(found.v, turned(of_ga), go);
    if (of_o.defined()) products(found.v, turned(a), of_o, Into::sum);

    auto of_g = times(of_go, out);
    auto of_x = times(found.all, map.t());
    auto of_map = across(x, found.all);
    if (ux.defined()) of_map.addmm_(ux.flatten(0, 1).t(), gqkv.flatten(0, 1));
    if (umap.defined()) of_x = of_x + times(gqkv, umap.t());
    if (uout.defined()) of_g = of_g + times(o, uout);
    variable_list results = {of_g, of_x, of_map, sum_of_rows(found.all), across(of_go, g)};
    results.resize(9);
    return results;
  }
};

struct Forward : Function<Forward> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& map,
                        const Tensor& bias, const Tensor& out) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const Three of(
        x.is_cpu()
            ? times(x, map).add_(bias)
            : at::addmm(bias, x.flatten(0, 1), map).view({x.size(0), x.size(1), map.size(1)}));
    const auto a = at::softmax(products(of.q, turned(of.k)), -1);
    const auto o = products(a, of.v);
    ctx->save_for_backward({x, map, bias, out, of.all, a, o});
    return times(o, out);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& given) {
    const auto saved = ctx->get_saved_variables();
    bool all = false;
    for (size_t i = 1; i < 4; ++i) all = all || ctx->needs_input_grad(i);
    auto found = Backward::apply(given[0], saved[0], saved[1], saved[2], saved[3], saved[4],
                                 saved[5], saved[6], all);
    found.resize(4);
    return found;
  }
};

}  // namespace

Tensor attention(const Tensor& x, const Tensor& map, const Tensor& bias, const Tensor& out) {
  // A trace sees LibTorch's operators only.
  if (at::tracer::impl::is_dispatch_enabled()) return reference::attention(x, map, bias, out);
  return image_of(Forward::apply(rows_of(x), map, bias, out), x);
}

Tensor reference::attention(const Tensor& x, const Tensor& map, const Tensor& bias,
                            const Tensor& out) {
  const auto parts = (at::matmul(rows_of(x), map) + bias).chunk(3, 2);
  const auto weights = at::softmax(at::bmm(parts[0], turned(parts[1])), -1);
  return image_of(at::matmul(at::bmm(weights, parts[2]), out), x);
}

}  // namespace ddaebm::ops
