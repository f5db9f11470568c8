#include "ddaebm/ops/image_kernels.h"

#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops::kernels {
namespace {

using torch::Tensor;

// Sums of bfloat16 are made in float32.
Tensor precise(const Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? x.to(torch::kFloat) : x;
}

// x as [N, G, C / G, H W], and values of channels [N, C] or of groups [N, G] beside it.
struct View {
  View(const Tensor& like, int64_t groups_) : shape(like.sizes().vec()), groups(groups_) {}
  Tensor image(const Tensor& x) const {
    return precise(x).reshape({shape[0], groups, shape[1] / groups, -1});
  }
  Tensor channels(const Tensor& v) const {
    return precise(v).reshape({shape[0], groups, shape[1] / groups, 1});
  }
  Tensor over_groups(const Tensor& v) const { return v.reshape({shape[0], groups, 1, 1}); }
  Tensor back(const Tensor& x, const Tensor& like) const {
    return x.reshape(shape).to(like.scalar_type());
  }
  Tensor channel_sum(const Tensor& x, const Tensor& like) const {
    return x.sum(3).reshape({shape[0], shape[1]}).to(like.scalar_type());
  }
  std::vector<int64_t> shape;
  int64_t groups;
};

Tensor group_mean(const Tensor& x) { return x.mean(at::IntArrayRef({2, 3}), /*keepdim=*/true); }

// The transpose of normalising, which is its own: what is constant in a group, and what follows the
// normalised x, is taken away.
Tensor project(const Tensor& g, const Tensor& normal) {
  return g - group_mean(g) - normal * group_mean(g * normal);
}

// First and second derivative of silu at u; of the identity without it.
struct Bend {
  Bend(const Tensor& u, bool silu) {
    if (!silu) return;
    const auto s = u.sigmoid();
    first = s * (1 + u * (1 - s));
    second = s * (1 - s) * (2 + u * (1 - 2 * s));
  }
  Tensor times_first(const Tensor& x) const { return first.defined() ? x * first : x; }
  Tensor first, second;
};

}  // namespace

std::tuple<Tensor, Tensor, Tensor> group_norm_forward(const Tensor& x, const Tensor& scale,
                                                      const Tensor& shift,
                                                      const GroupNormConfig& config) {
  if (gpu::takes(x)) return gpu::group_norm_forward(x, scale, shift, config);
  const View view(x, config.groups);
  auto normal = view.image(x);
  const auto mean = group_mean(normal);
  normal = normal - mean;
  const auto inverse = (group_mean(normal.square()) + config.eps).rsqrt();
  const auto u = view.channels(scale) * (normal * inverse) + view.channels(shift);
  return {view.back(config.silu ? at::silu(u) : u, x), mean.reshape({x.size(0), config.groups}),
          inverse.reshape({x.size(0), config.groups})};
}

GroupNormGradients group_norm_backward(const Tensor& gy, const GroupNormParts& parts,
                                       const GroupNormConfig& config) {
  if (gpu::takes(gy)) return gpu::group_norm_backward(gy, parts, config);
  const View view(parts.x, config.groups);
  const auto inverse = view.over_groups(parts.inverse);
  const auto scale = view.channels(parts.scale);
  const auto normal = (view.image(parts.x) - view.over_groups(parts.mean)) * inverse;
  const Bend bend(scale * normal + view.channels(parts.shift), config.silu);
  const auto gu = bend.times_first(view.image(gy));
  return {view.back(inverse * project(scale * gu, normal), parts.x),
          view.channel_sum(gu * normal, parts.scale), view.channel_sum(gu, parts.shift)};
}

// With n the normalised x, r one over the deviation, P the projection, M the size of a group:
//   gu = gy silu'(u), k = scale gu, gx = r P k, gscale = sum gu n, gshift = sum gu.
// The loss is L = <v, gx> + <vs, gscale> + <vh, gshift> = <gu, w>, since P is its own transpose,
//   w = scale p + vs n + vh,  p = r P v,
// which holds gy and, through gu, u: dL/dgy = w silu'(u), dL/du = q = w gy silu''(u). Within p,
//   <p, k> = r (<v, k> - M mean(v) mean(k) - M mean(v n) mean(k n))
// gives dL/dn = -r (mean(k n) v + mean(v n) k), and dL/dr = <p, k> / r with dr/dx = -r^2 n / M.
GroupNormSecondGradients group_norm_backward_twice(const GroupNormGradients& cotangents,
                                                   const Tensor& gy, const GroupNormParts& parts,
                                                   const GroupNormConfig& config) {
  if (gpu::takes(gy) && cotangents.x.defined() && !cotangents.scale.defined() &&
      !cotangents.shift.defined()) {
    return gpu::group_norm_backward_twice(cotangents.x, gy, parts, config);
  }
  const View view(parts.x, config.groups);
  const auto r = view.over_groups(parts.inverse);
  const auto scale = view.channels(parts.scale);
  const auto n = (view.image(parts.x) - view.over_groups(parts.mean)) * r;
  const Bend bend(scale * n + view.channels(parts.shift), config.silu);
  const auto g = view.image(gy);
  const auto gu = bend.times_first(g);
  const auto k = scale * gu;

  auto w = torch::zeros_like(n);
  auto gn = torch::zeros_like(n);
  auto gscale = torch::zeros_like(n);
  Tensor from_deviation;
  if (cotangents.x.defined()) {
    const auto v = view.image(cotangents.x);
    const auto p = r * project(v, n);
    w = w + scale * p;
    gn = gn - r * (group_mean(k * n) * v + group_mean(v * n) * k);
    gscale = gscale + p * gu;
    from_deviation = -r * n * group_mean(p * k);
  }
  if (cotangents.scale.defined()) {
    const auto vs = view.channels(cotangents.scale);
    w = w + vs * n;
    gn = gn + vs * gu;
  }
  if (cotangents.shift.defined()) w = w + view.channels(cotangents.shift);
  Tensor gshift;
  if (config.silu) {
    const auto q = w * g * bend.second;
    gn = gn + scale * q;
    gscale = gscale + q * n;
    gshift = view.channel_sum(q, parts.shift);
  } else {
    gshift = torch::zeros_like(parts.shift);
  }
  auto gx = r * project(gn, n);
  if (from_deviation.defined()) gx = gx + from_deviation;
  return {view.back(bend.times_first(w), gy), view.back(gx, parts.x),
          view.channel_sum(gscale, parts.scale), gshift};
}

}  // namespace ddaebm::ops::kernels
