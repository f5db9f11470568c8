#include "ddaebm/ops/image_kernels.h"

#include "ddaebm/ops/cpu_images.h"
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
  // Sums over pixels: [3, N, C]; nothing is added to x here.
  Tensor channel_sums(const Tensor& of_scale, const Tensor& of_shift) const {
    const auto sum = [&](const Tensor& x) { return x.sum(3).reshape({shape[0], shape[1]}); };
    const auto scale = sum(of_scale);
    return at::stack({scale, sum(of_shift), torch::zeros_like(scale)});
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

bool takes(const Tensor& x) { return gpu::takes(x) || cpu::takes(x); }

Tensor group_norm_forward(GroupNormParts& parts, const GroupNormConfig& config) {
  if (gpu::takes(parts.x)) return gpu::group_norm_forward(parts, config);
  if (cpu::takes(parts.x)) return cpu::group_norm_forward(parts, config);
  const auto& x = parts.x;
  const View view(x, config.groups);
  auto normal = view.image(x);
  const auto mean = group_mean(normal);
  normal = normal - mean;
  const auto inverse = (group_mean(normal.square()) + config.eps).rsqrt();
  const auto u = view.channels(parts.scale) * (normal * inverse) + view.channels(parts.shift);
  parts.mean = mean.reshape({x.size(0), config.groups});
  parts.inverse = inverse.reshape({x.size(0), config.groups});
  return view.back(config.silu ? at::silu(u) : u, x);
}

GroupNormGradients group_norm_backward(const Tensor& gy, const GroupNormParts& parts,
                                       const GroupNormConfig& config, bool channels_wanted,
                                       const Tensor& more) {
  if (gpu::takes(gy)) return gpu::group_norm_backward(gy, parts, config, channels_wanted, more);
  if (cpu::takes(gy)) return cpu::group_norm_backward(gy, parts, config, channels_wanted, more);
  const View view(parts.x, config.groups);
  const auto inverse = view.over_groups(parts.inverse);
  const auto scale = view.channels(parts.scale);
  const auto normal = (view.image(parts.x) - view.over_groups(parts.mean)) * inverse;
  const Bend bend(scale * normal + view.channels(parts.shift), config.silu);
  const auto gu = bend.times_first(view.image(gy));
  const auto gx = view.back(inverse * project(scale * gu, normal), parts.x);
  return {more.defined() ? gx + more : gx,
          channels_wanted ? view.channel_sums(gu * normal, gu) : Tensor()};
}

// With n the normalised x, r one over the deviation, P the projection, M the size of a group:
//   gu = gy silu'(u), k = scale gu, gx = r P k, gscale = sum gu n, gshift = sum gu.
// The loss is L = <v, gx> + <vs, gscale> + <vh, gshift> = <gu, w>, since P is its own transpose,
//   w = scale p + vs n + vh,  p = r P v,
// which holds gy and, through gu, u: dL/dgy = w silu'(u), dL/du = q = w gy silu''(u). Within p,
//   <p, k> = r (<v, k> - M mean(v) mean(k) - M mean(v n) mean(k n))
// gives dL/dn = -r (mean(k n) v + mean(v n) k), and dL/dr = <p, k> / r with dr/dx = -r^2 n / M.
GroupNormSecondGradients group_norm_backward_twice(const GroupNormCotangents& cotangents,
                                                   const Tensor& gy, const GroupNormParts& parts,
                                                   const GroupNormConfig& config) {
  if (takes(gy) && cotangents.x.defined() && !cotangents.scale.defined() &&
      !cotangents.shift.defined()) {
    return gpu::takes(gy) ? gpu::group_norm_backward_twice(cotangents.x, gy, parts, config)
                          : cpu::group_norm_backward_twice(cotangents.x, gy, parts, config);
  }
  TORCH_CHECK(!parts.add.defined() && parts.dropout.rate == 0,
              "group_norm: second derivatives through the gradients of scale and shift are for a "
              "norm without addition and dropout");
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
  auto gshift = torch::zeros_like(n);
  if (config.silu) {
    gshift = w * g * bend.second;
    gn = gn + scale * gshift;
    gscale = gscale + gshift * n;
  }
  auto gx = r * project(gn, n);
  if (from_deviation.defined()) gx = gx + from_deviation;
  return {view.back(bend.times_first(w), gy), view.back(gx, parts.x),
          view.channel_sums(gscale, gshift)};
}

Tensor scaled_sum(const Tensor& a, const Tensor& b, const Tensor& bias, double gain) {
  return gpu::takes(a) ? gpu::scaled_sum(a, b, bias, gain) : cpu::scaled_sum(a, b, bias, gain);
}

std::tuple<Tensor, Tensor> scaled_with_sums(const Tensor& g, double gain) {
  if (gpu::takes(g)) return gpu::scaled_with_sums(g, gain);
  const auto scaled = g * gain;
  return {scaled, scaled.sum(at::IntArrayRef({2, 3}))};
}

Tensor concatenate(const Tensor& a, const Tensor& b) {
  return gpu::takes(a) ? gpu::concatenate(a, b) : cpu::concatenate(a, b);
}

std::tuple<Tensor, Tensor> separate(const Tensor& whole, int64_t first) {
  if (gpu::takes(whole)) return gpu::separate(whole, first);
  const auto part = [&](int64_t from, int64_t channels) {
    return whole.narrow(1, from, channels).contiguous(at::MemoryFormat::ChannelsLast);
  };
  return {part(0, first), part(first, whole.size(1) - first)};
}

Tensor fir(const Tensor& x, int64_t out_height, int64_t out_width, const FirSteps& steps) {
  return gpu::takes(x) ? gpu::fir(x, out_height, out_width, steps)
                       : cpu::fir(x, out_height, out_width, steps);
}

}  // namespace ddaebm::ops::kernels
