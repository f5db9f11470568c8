#include "ddaebm/ops/resample.h"

#include <array>

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/image_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;

constexpr std::array<double, 4> kTaps = {0.125, 0.375, 0.375, 0.125};

// [to, from]: output o is the sum of taps k times input o * step + k - pad, zero beyond the ends.
Tensor filter_matrix(int64_t from, int64_t to, int64_t step, int64_t pad, const Tensor& like) {
  // A constant of a trace, which does not see how it is filled.
  const at::tracer::impl::NoTracerDispatchMode untraced;
  auto matrix = torch::zeros({to, from}, torch::kDouble);
  auto at = matrix.accessor<double, 2>();
  for (int64_t o = 0; o < to; ++o) {
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t i = o * step + k - pad;
      if (i >= 0 && i < from) at[o][i] = kTaps.at(static_cast<size_t>(k));
    }
  }
  return matrix.to(like.options());
}

// The same along rows and columns: two products with small matrices.
Tensor along_both(const Tensor& x, const Tensor& rows, const Tensor& columns) {
  return at::matmul(rows, at::matmul(x, columns.t()));
}

// [1, 1, 4, 4] for every channel.
Tensor kernel(const Tensor& x) {
  const auto taps = torch::tensor(at::ArrayRef<double>(kTaps.data(), 4), torch::kDouble);
  return at::outer(taps, taps).to(x.options()).expand({x.size(1), 1, 4, 4});
}

// One kernel, whose transpose is one too; it takes the other size and steps.
struct Fir : torch::autograd::Function<Fir> {
  struct Way {
    int64_t height, width;
    kernels::FirSteps steps;
  };
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Way& way,
                        const Way& back) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    ctx->saved_data["ways"] = c10::IValue::make_capsule(c10::make_intrusive<Saved>(way, back));
    return kernels::fir(x, way.height, way.width, way.steps);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list given) {
    const auto& ways = static_cast<const Saved&>(*ctx->saved_data["ways"].toCapsule());
    return {Fir::apply(given[0], ways.back, ways.way), Tensor(), Tensor()};
  }

 private:
  struct Saved : torch::CustomClassHolder {
    Saved(const Way& way_, const Way& back_) : way(way_), back(back_) {}
    Way way, back;
  };
};

constexpr kernels::FirSteps kDown{.up = 1, .down = 2, .pad = 1, .gain = 1.0};
constexpr kernels::FirSteps kUp{.up = 2, .down = 1, .pad = 2, .gain = 4.0};
constexpr kernels::FirSteps kSmooth{.up = 1, .down = 1, .pad = 2, .gain = 1.0};
constexpr kernels::FirSteps kSmoothBack{.up = 1, .down = 1, .pad = 1, .gain = 1.0};

// `gain` is what the transpose of one resampling has over the other.
Tensor by_kernel(const Tensor& x, int64_t height, int64_t width, const kernels::FirSteps& steps,
                 kernels::FirSteps back, double gain) {
  back.gain *= gain;
  return Fir::apply(x, Fir::Way{height, width, steps}, Fir::Way{x.size(2), x.size(3), back});
}

}  // namespace

Tensor upsample(const Tensor& x, Filter filter) {
  if (filter == Filter::box) return at::upsample_nearest2d(x, {x.size(2) * 2, x.size(3) * 2});
  if (kernels::takes(x)) return by_kernel(x, x.size(2) * 2, x.size(3) * 2, kUp, kDown, 4.0);
  const auto half = [&](int64_t n) { return filter_matrix(2 * n, n, 2, 1, x).t() * 2.0; };
  return along_both(x, half(x.size(2)), half(x.size(3)));
}

Tensor downsample(const Tensor& x, Filter filter) {
  if (filter == Filter::box) return at::avg_pool2d(x, 2);
  if (kernels::takes(x)) return by_kernel(x, x.size(2) / 2, x.size(3) / 2, kDown, kUp, 0.25);
  const auto half = [&](int64_t n) { return filter_matrix(n, n / 2, 2, 1, x); };
  return along_both(x, half(x.size(2)), half(x.size(3)));
}

Tensor smooth(const Tensor& x) {
  if (kernels::takes(x))
    return by_kernel(x, x.size(2) + 1, x.size(3) + 1, kSmooth, kSmoothBack, 1.0);
  const auto wider = [&](int64_t n) { return filter_matrix(n, n + 1, 1, 2, x); };
  return along_both(x, wider(x.size(2)), wider(x.size(3)));
}

namespace reference {

Tensor upsample(const Tensor& x, Filter filter) {
  if (filter == Filter::box) return x.repeat_interleave(2, 2).repeat_interleave(2, 3);
  return at::conv_transpose2d(x, 4.0 * kernel(x), {}, 2, 1, 0, x.size(1));
}

Tensor downsample(const Tensor& x, Filter filter) {
  if (filter == Filter::box) {
    return x.reshape({x.size(0), x.size(1), x.size(2) / 2, 2, x.size(3) / 2, 2})
        .mean(at::IntArrayRef({3, 5}));
  }
  return at::conv2d(x, kernel(x), {}, 2, 1, 1, x.size(1));
}

Tensor smooth(const Tensor& x) { return at::conv2d(x, kernel(x), {}, 1, 2, 1, x.size(1)); }

}  // namespace reference
}  // namespace ddaebm::ops
