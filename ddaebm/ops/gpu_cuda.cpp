#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddaebm/ops/cuda/launchers.h"
#include "ddaebm/ops/gpu.h"

namespace ddaebm::ops::gpu {
namespace {

using torch::Tensor;

cuda::Type type_of(const Tensor& x) {
  if (x.scalar_type() == torch::kBFloat16) return cuda::Type::bfloat16;
  return x.scalar_type() == torch::kDouble ? cuda::Type::float64 : cuda::Type::float32;
}

cuda::Stream stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

Tensor channels_last(const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }

Tensor like(const Tensor& x) {
  return at::empty(x.sizes(), x.options(), at::MemoryFormat::ChannelsLast);
}

// The type of sums.
torch::ScalarType wide(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

// [N, C] with unit stride along C, or one row that all images share.
struct Channels {
  Channels(const Tensor& given, const Tensor& x) : values(given.to(wide(x))) {
    if (values.stride(1) != 1 && values.size(1) > 1) values = values.contiguous();
  }
  cuda::ChannelValues view() const {
    return {values.data_ptr(), values.size(0) == 1 ? 0 : values.stride(0)};
  }
  Tensor values;
};

struct Norm {
  Norm(const Tensor& x_, const Tensor& scale_, const Tensor& shift_, const Tensor& mean_,
       const Tensor& inverse_, const GroupNormConfig& config)
      : x(channels_last(x_)), scale(scale_, x_), shift(shift_, x_), mean(mean_), inverse(inverse_) {
    description = {type_of(x),   x.size(0),       x.size(2) * x.size(3),
                   x.size(1),    config.groups,   config.silu,
                   config.eps,   x.data_ptr(),    scale.view(),
                   shift.view(), mean.data_ptr(), inverse.data_ptr()};
  }
  Tensor for_channels() const { return torch::empty({x.size(0), x.size(1)}, mean.options()); }
  Tensor x;
  Channels scale, shift;
  Tensor mean, inverse;
  cuda::GroupNorm description;
};

}  // namespace

bool takes(const Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble ||
                         x.scalar_type() == torch::kBFloat16);
}

std::tuple<Tensor, Tensor, Tensor> group_norm_forward(const Tensor& x, const Tensor& scale,
                                                      const Tensor& shift,
                                                      const GroupNormConfig& config) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto mean = torch::empty({x.size(0), config.groups}, x.options().dtype(wide(x)));
  const Norm norm(x, scale, shift, mean, torch::empty_like(mean), config);
  auto y = like(x);
  cuda::group_norm_forward(norm.description, y.data_ptr(), stream());
  return {y, norm.mean, norm.inverse};
}

kernels::GroupNormGradients group_norm_backward(const Tensor& gy,
                                                const kernels::GroupNormParts& parts,
                                                const GroupNormConfig& config) {
  const c10::cuda::CUDAGuard guard(gy.device());
  const Norm norm(parts.x, parts.scale, parts.shift, parts.mean, parts.inverse, config);
  const auto g = channels_last(gy);
  auto gx = like(parts.x);
  auto gscale = norm.for_channels();
  auto gshift = norm.for_channels();
  cuda::group_norm_backward(norm.description, g.data_ptr(), gx.data_ptr(), gscale.data_ptr(),
                            gshift.data_ptr(), stream());
  return {gx, gscale.to(parts.scale.scalar_type()), gshift.to(parts.shift.scalar_type())};
}

kernels::GroupNormSecondGradients group_norm_backward_twice(const Tensor& v, const Tensor& gy,
                                                            const kernels::GroupNormParts& parts,
                                                            const GroupNormConfig& config) {
  const c10::cuda::CUDAGuard guard(gy.device());
  const Norm norm(parts.x, parts.scale, parts.shift, parts.mean, parts.inverse, config);
  const auto direction = channels_last(v);
  const auto g = channels_last(gy);
  auto ggy = like(gy);
  auto gx = like(parts.x);
  auto gscale = norm.for_channels();
  auto gshift = norm.for_channels();
  cuda::group_norm_backward_twice(norm.description, direction.data_ptr(), g.data_ptr(),
                                  ggy.data_ptr(), gx.data_ptr(), gscale.data_ptr(),
                                  gshift.data_ptr(), stream());
  return {ggy, gx, gscale.to(parts.scale.scalar_type()), gshift.to(parts.shift.scalar_type())};
}

Tensor fir(const Tensor& x, int64_t out_height, int64_t out_width, const FirSteps& steps) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = channels_last(x);
  auto out = at::empty({x.size(0), x.size(1), out_height, out_width}, x.options(),
                       at::MemoryFormat::ChannelsLast);
  cuda::fir({type_of(x), x.size(0), x.size(1), x.size(2), x.size(3), out_height, out_width,
             steps.up, steps.down, steps.pad, steps.gain},
            in.data_ptr(), out.data_ptr(), stream());
  return out;
}

void adam(Tensor& p, const Tensor& g, Tensor& m, Tensor& v, Tensor& average, const Tensor& dials,
          const AdamConstants& constants) {
  const c10::cuda::CUDAGuard guard(p.device());
  const auto gradient = g.contiguous();
  cuda::adam({type_of(p), p.numel(), constants.beta1, constants.beta2, constants.eps,
              constants.average_decay, dials.data_ptr()},
             p.data_ptr(), gradient.data_ptr(), m.data_ptr(), v.data_ptr(), average.data_ptr(),
             stream());
}

}  // namespace ddaebm::ops::gpu
