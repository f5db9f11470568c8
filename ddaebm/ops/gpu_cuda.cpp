#include <cmath>

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

// [N, C] with unit stride along C, or one row that all images share; may be undefined.
struct Channels {
  Channels(const Tensor& given, const Tensor& x) {
    if (!given.defined()) return;
    values = given.to(wide(x));
    if (values.stride(1) != 1 && values.size(1) > 1) values = values.contiguous();
  }
  cuda::ChannelValues view() const {
    if (!values.defined()) return {nullptr, 0};
    return {values.data_ptr(), values.size(0) == 1 ? 0 : values.stride(0)};
  }
  Tensor values;
};

struct Norm {
  Norm(const kernels::GroupNormParts& parts, const GroupNormConfig& config)
      : x(channels_last(parts.x)),
        scale(parts.scale, x),
        shift(parts.shift, x),
        add(parts.add, x),
        mean(parts.mean) {
    const Dropout& dropout = parts.dropout;
    const double dropped = std::round(65536.0 * dropout.rate);
    description = {
        type_of(x),
        x.size(0),
        x.size(2) * x.size(3),
        x.size(1),
        config.groups,
        config.silu,
        config.eps,
        x.data_ptr(),
        scale.view(),
        shift.view(),
        add.view(),
        static_cast<uint32_t>(dropped),
        65536.0 / (65536.0 - dropped),
        dropout.rate > 0 ? static_cast<const uint64_t*>(dropout.seed.data_ptr()) : nullptr,
        dropout.salt,
        parts.mean.data_ptr(),
        parts.inverse.data_ptr()};
  }
  Tensor for_channels() const { return torch::empty({3, x.size(0), x.size(1)}, mean.options()); }
  Tensor x;
  Channels scale, shift, add;
  Tensor mean;
  cuda::GroupNorm description;
};

void* pointer(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }

// A matrix, and the product that a kernel is to fill it with, if any.
struct Filled {
  explicit Filled(const kernels::Matrix& from) : matrix(from.a) {
    if (!from.b.defined()) return;
    const Tensor& a = from.a;
    const Tensor& b = from.b;
    // A kernel's blocks each read all of a; beyond this a library's product is faster: one of
    // [200, 300] by [300, 300] takes 6 microseconds, this one 17 (docs/performance.md).
    constexpr int64_t kMostElements = 100000;
    constexpr int64_t kMostInner = 128;
    const bool side_by_side = a.stride(1) == 1 && (b.stride(0) == 1 || b.stride(1) == 1);
    if (a.numel() > kMostElements || a.size(1) > kMostInner || !side_by_side) {
      matrix = a.mm(b);
      return;
    }
    matrix = torch::empty({a.size(0), b.size(1)}, a.options());
    const bool aligned = reinterpret_cast<uintptr_t>(a.data_ptr()) % 16 == 0 &&
                         a.stride(0) * a.element_size() % 16 == 0;
    product = {a.data_ptr(), b.data_ptr(), static_cast<int>(a.size(1)), a.stride(0), b.stride(0),
               b.stride(1),  aligned};
  }
  Tensor matrix;
  cuda::Product product = {};
};

// What a dense layer's kernel is told of its matrix, the bias table and the rows in it.
cuda::Dense dense(const Filled& h, const Tensor& rows, int64_t table_rows,
                  const Tensor& table = {}) {
  return {type_of(h.matrix), h.matrix.size(0), h.matrix.size(1),
          pointer(table),    table_rows,       rows.defined() ? rows.data_ptr<int64_t>() : nullptr,
          h.product};
}

// A place for the sums of each block, which together are a slope's gradient.
Tensor slope_sums(const Filled& h) {
  return torch::empty({cuda::dense_blocks(h.matrix.size(1), h.product.a != nullptr)},
                      h.matrix.options());
}

std::vector<cuda::Piece> pieces_of(const std::vector<Tensor>& flat) {
  std::vector<cuda::Piece> pieces;
  for (const auto& x : flat) pieces.push_back({x.data_ptr(), x.numel()});
  return pieces;
}

cuda::Image shape_of(const Tensor& x) {
  return {type_of(x), x.size(0), x.size(2) * x.size(3), x.size(1)};
}

}  // namespace

bool takes(const Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble ||
                         x.scalar_type() == torch::kBFloat16);
}

Tensor group_norm_forward(kernels::GroupNormParts& parts, const GroupNormConfig& config) {
  const auto& x = parts.x;
  const c10::cuda::CUDAGuard guard(x.device());
  parts.mean = torch::empty({x.size(0), config.groups}, x.options().dtype(wide(x)));
  parts.inverse = torch::empty_like(parts.mean);
  const Norm norm(parts, config);
  auto y = like(x);
  cuda::group_norm_forward(norm.description, y.data_ptr(), stream());
  return y;
}

kernels::GroupNormGradients group_norm_backward(const Tensor& gy,
                                                const kernels::GroupNormParts& parts,
                                                const GroupNormConfig& config, bool channels_wanted,
                                                const Tensor& more) {
  const c10::cuda::CUDAGuard guard(gy.device());
  const Norm norm(parts, config);
  const auto g = channels_last(gy);
  auto gx = like(parts.x);
  auto channels = channels_wanted ? norm.for_channels() : Tensor();
  const auto added = more.defined() ? channels_last(more.to(gx.scalar_type())) : more;
  cuda::group_norm_backward(norm.description, g.data_ptr(),
                            added.defined() ? added.data_ptr() : nullptr, gx.data_ptr(),
                            channels_wanted ? channels.data_ptr() : nullptr, stream());
  return {gx, channels};
}

kernels::GroupNormSecondGradients group_norm_backward_twice(const Tensor& v, const Tensor& gy,
                                                            const kernels::GroupNormParts& parts,
                                                            const GroupNormConfig& config) {
  const c10::cuda::CUDAGuard guard(gy.device());
  const Norm norm(parts, config);
  const auto direction = channels_last(v);
  const auto g = channels_last(gy);
  auto ggy = like(gy);
  auto gx = like(parts.x);
  auto channels = norm.for_channels();
  cuda::group_norm_backward_twice(norm.description, direction.data_ptr(), g.data_ptr(),
                                  ggy.data_ptr(), gx.data_ptr(), channels.data_ptr(), stream());
  return {ggy, gx, channels};
}

Tensor scaled_sum(const Tensor& a, const Tensor& b, const Tensor& bias, double gain) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto first = channels_last(a);
  const auto second = channels_last(b);
  const Channels of_channels(bias, a);
  auto y = like(a);
  cuda::scaled_sum(shape_of(a), first.data_ptr(), second.data_ptr(), of_channels.view(), gain,
                   y.data_ptr(), stream());
  return y;
}

std::tuple<Tensor, Tensor> scaled_with_sums(const Tensor& g, double gain) {
  const c10::cuda::CUDAGuard guard(g.device());
  const auto in = channels_last(g);
  auto y = like(g);
  auto sums = torch::empty({g.size(0), g.size(1)}, g.options().dtype(wide(g)));
  cuda::scaled_with_sums(shape_of(g), in.data_ptr(), gain, y.data_ptr(), sums.data_ptr(), stream());
  return {y, sums};
}

Tensor sums_over_pixels(const Tensor& rows) {
  const c10::cuda::CUDAGuard guard(rows.device());
  const auto in = rows.contiguous();
  auto sums = torch::empty({in.size(0), in.size(2)}, in.options().dtype(wide(in)));
  cuda::scaled_with_sums({type_of(in), in.size(0), in.size(1), in.size(2)}, in.data_ptr(), 1.0,
                         nullptr, sums.data_ptr(), stream());
  return sums;
}

std::tuple<Tensor, Tensor> softmax_twice(const Tensor& a, const Tensor& h, const Tensor& gs,
                                         const Tensor& b) {
  const c10::cuda::CUDAGuard guard(a.device());
  auto of_ga = torch::empty_like(a);
  auto of_s = torch::empty_like(a);
  cuda::softmax_twice({type_of(a), a.numel() / a.size(-1), a.size(-1)}, a.contiguous().data_ptr(),
                      h.contiguous().data_ptr(), gs.contiguous().data_ptr(),
                      b.contiguous().data_ptr(), of_ga.data_ptr(), of_s.data_ptr(), stream());
  return {of_ga, of_s};
}

Tensor concatenate(const Tensor& a, const Tensor& b) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto first = channels_last(a);
  const auto second = channels_last(b);
  auto y = at::empty({a.size(0), a.size(1) + b.size(1), a.size(2), a.size(3)}, a.options(),
                     at::MemoryFormat::ChannelsLast);
  cuda::concatenate(shape_of(y), a.size(1), first.data_ptr(), second.data_ptr(), y.data_ptr(),
                    stream());
  return y;
}

std::tuple<Tensor, Tensor> separate(const Tensor& whole, int64_t first) {
  const c10::cuda::CUDAGuard guard(whole.device());
  const auto in = channels_last(whole);
  const auto part = [&](int64_t channels) {
    return at::empty({whole.size(0), channels, whole.size(2), whole.size(3)}, whole.options(),
                     at::MemoryFormat::ChannelsLast);
  };
  auto a = part(first);
  auto b = part(whole.size(1) - first);
  cuda::separate(shape_of(whole), first, in.data_ptr(), a.data_ptr(), b.data_ptr(), stream());
  return {a, b};
}

Tensor fir(const Tensor& x, int64_t out_height, int64_t out_width, const kernels::FirSteps& steps) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = channels_last(x);
  auto out = at::empty({x.size(0), x.size(1), out_height, out_width}, x.options(),
                       at::MemoryFormat::ChannelsLast);
  cuda::fir({type_of(x), x.size(0), x.size(1), x.size(2), x.size(3), out_height, out_width,
             steps.up, steps.down, steps.pad, steps.gain},
            in.data_ptr(), out.data_ptr(), stream());
  return out;
}

Tensor add_bias(const kernels::Matrix& given, const Tensor& table, const Tensor& rows) {
  const c10::cuda::CUDAGuard guard(given.a.device());
  const Filled h(given);
  cuda::bias_prelu(dense(h, rows, table.size(0), table), h.matrix.data_ptr(), nullptr, {}, nullptr,
                   stream());
  return h.matrix;
}

kernels::Bent bias_prelu(const kernels::Matrix& given, const Tensor& table, const Tensor& rows,
                         const Tensor& slope, const Tensor& after, const Tensor& after_rows) {
  const c10::cuda::CUDAGuard guard(given.a.device());
  const Filled h(given);
  auto y = torch::empty_like(h.matrix);
  const cuda::AddedRows added =
      after.defined() ? cuda::AddedRows{after.data_ptr(), after_rows.data_ptr<int64_t>()}
                      : cuda::AddedRows{};
  cuda::bias_prelu(dense(h, rows, table.size(0), table), h.matrix.data_ptr(), slope.data_ptr(),
                   added, y.data_ptr(), stream());
  return {h.matrix, y};
}

kernels::Bent bias_bend(const kernels::Matrix& given, const Tensor& bias, const Tensor& before,
                        const Tensor& rows, Bend bend) {
  const c10::cuda::CUDAGuard guard(given.a.device());
  const Filled h(given);
  auto y = torch::empty_like(h.matrix);
  const cuda::AddedRows added = before.defined()
                                    ? cuda::AddedRows{before.data_ptr(), rows.data_ptr<int64_t>()}
                                    : cuda::AddedRows{};
  cuda::bias_bend(dense(h, {}, 1, bias), h.matrix.data_ptr(), added, bend, y.data_ptr(), stream());
  return {h.matrix, y};
}

Tensor bend_backward(const kernels::Matrix& gy, const Tensor& h, Bend bend, const Tensor& more) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Filled g(gy);
  auto gh = torch::empty_like(h);
  const auto added = more.defined() ? more.contiguous() : more;
  cuda::bend_backward(dense(g, {}, 0), g.matrix.data_ptr(), h.data_ptr(), bend, pointer(added),
                      gh.data_ptr(), stream());
  return gh;
}

kernels::BendTwice bend_backward_twice(const kernels::Matrix& given, const Tensor& gy,
                                       const Tensor& h, Bend bend) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Filled u(given);
  auto of_h = torch::empty_like(h);
  auto of_gy = torch::empty_like(h);
  cuda::bend_backward_twice(dense(u, {}, 0), u.matrix.data_ptr(), gy.data_ptr(), h.data_ptr(), bend,
                            of_gy.data_ptr(), of_h.data_ptr(), stream());
  return {of_gy, of_h};
}

Tensor prelu_backward(const kernels::Matrix& gy, const Tensor& h, const Tensor& slope) {
  const c10::cuda::CUDAGuard guard(h.device());
  const Filled g(gy);
  auto gh = torch::empty_like(h);
  cuda::prelu_backward(dense(g, {}, 0), g.matrix.data_ptr(), h.data_ptr(), slope.data_ptr(),
                       gh.data_ptr(), stream());
  return gh;
}

kernels::PreluGradients bias_prelu_backward(const kernels::Matrix& gy, const Tensor& h,
                                            const Tensor& slope, const Tensor& rows,
                                            int64_t table_rows) {
  const c10::cuda::CUDAGuard guard(gy.a.device());
  const Filled g(gy);
  const bool bent = slope.defined();
  const auto gh = bent ? torch::empty_like(h) : Tensor();
  const auto sums = bent ? slope_sums(g) : Tensor();
  auto table = torch::empty({table_rows, g.matrix.size(1)}, g.matrix.options());
  cuda::bias_prelu_backward(dense(g, rows, table_rows), g.matrix.data_ptr(), pointer(h),
                            pointer(slope), pointer(gh), table.data_ptr(), pointer(sums), stream());
  return {bent ? gh : g.matrix, table, sums};
}

kernels::PreluGradients bias_prelu_tangent(const kernels::Matrix& given, const Tensor& weight,
                                           const Tensor& table, const Tensor& rows, const Tensor& h,
                                           const Tensor& slope, const Tensor& dy) {
  const c10::cuda::CUDAGuard guard(dy.device());
  const Filled u(given);
  const bool bent = slope.defined();
  auto g_table = torch::empty_like(table);
  const auto sums = bent ? slope_sums(u) : Tensor();
  cuda::bias_prelu_tangent(dense(u, rows, table.size(0), table), u.matrix.data_ptr(),
                           weight.data_ptr(), bent ? h.data_ptr() : nullptr, pointer(slope),
                           dy.data_ptr(), g_table.data_ptr(), pointer(sums), stream());
  return {u.matrix, g_table, sums};
}

Tensor waves(const Tensor& x, const Tensor& frequencies) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto in = x.contiguous();
  const cuda::Waves of = {type_of(x), x.size(0), x.size(1), frequencies.size(0),
                          frequencies.data_ptr()};
  auto y = torch::empty({x.size(0), x.size(1) * (1 + 2 * of.waves)}, x.options());
  cuda::waves(of, in.data_ptr(), y.data_ptr(), stream());
  return y;
}

Tensor waves_backward(const Tensor& gy, const Tensor& y, const Tensor& frequencies) {
  const c10::cuda::CUDAGuard guard(y.device());
  const auto g = gy.contiguous();
  const int64_t count = frequencies.size(0);
  const cuda::Waves of = {type_of(y), y.size(0), y.size(1) / (1 + 2 * count), count,
                          frequencies.data_ptr()};
  auto gx = torch::empty({of.rows, of.columns}, y.options());
  cuda::waves_backward(of, g.data_ptr(), y.data_ptr(), gx.data_ptr(), stream());
  return gx;
}

Tensor sum_rows(const Tensor& g, const Tensor& rows, int64_t table_rows) {
  return bias_prelu_backward({g, {}}, {}, {}, rows, table_rows).table;
}

kernels::Normalised bias_norm_prelu(const kernels::Matrix& given, const Tensor& table,
                                    const Tensor& rows, const kernels::NormParts& norm,
                                    const Tensor& slope) {
  const c10::cuda::CUDAGuard guard(given.a.device());
  const Filled h(given);
  auto y = torch::empty_like(h.matrix);
  auto inverse = torch::empty_like(norm.scale);
  cuda::bias_norm_prelu(dense(h, rows, table.defined() ? table.size(0) : 0, table),
                        {norm.scale.data_ptr(), norm.shift.data_ptr(), norm.running_mean.data_ptr(),
                         norm.running_variance.data_ptr(), norm.momentum, norm.eps},
                        h.matrix.data_ptr(), pointer(slope), y.data_ptr(), inverse.data_ptr(),
                        stream());
  return {h.matrix, y, inverse};
}

kernels::NormPreluGradients norm_prelu_backward(const kernels::Matrix& gy, const Tensor& normalised,
                                                const Tensor& inverse_deviation,
                                                const Tensor& scale, const Tensor& shift,
                                                const Tensor& slope, const Tensor& rows,
                                                int64_t table_rows) {
  const c10::cuda::CUDAGuard guard(normalised.device());
  const Filled g(gy);
  auto gh = torch::empty_like(normalised);
  auto g_scale = torch::empty_like(scale);
  auto g_shift = torch::empty_like(shift);
  const auto sums = slope.defined() ? slope_sums(g) : Tensor();
  const auto g_table = torch::empty({table_rows, gh.size(1)}, gh.options());
  cuda::norm_prelu_backward(
      dense(g, rows, table_rows), {scale.data_ptr(), shift.data_ptr(), nullptr, nullptr, 0.0, 0.0},
      g.matrix.data_ptr(), normalised.data_ptr(), inverse_deviation.data_ptr(), pointer(slope),
      gh.data_ptr(), g_scale.data_ptr(), g_shift.data_ptr(), pointer(sums), g_table.data_ptr(),
      stream());
  return {gh, g_scale, g_shift, sums, g_table};
}

namespace {

// Of a tensor [N, ...] whose rows lie side by side, in whatever order of their elements.
cuda::RowMatrix rows_of(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0};
  return {x.data_ptr(), x.dim() == 2 ? x.stride(0) : x.numel() / x.size(0)};
}

cuda::RowVector row_vector(const Tensor& x) {
  if (!x.defined()) return {nullptr, 0};
  return {x.data_ptr(), x.stride(0)};
}

cuda::RowSums description(const RowSum& s) {
  const int64_t rows = s.b.size(0);
  return {type_of(s.b),
          s.kind,
          rows,
          s.b.numel() / rows,
          rows_of(s.a),
          rows_of(s.b),
          rows_of(s.c),
          row_vector(s.scale),
          row_vector(s.weight),
          row_vector(s.added)};
}

}  // namespace

bool takes_rows(const RowSum& s) {
  if (s.b.numel() == 0 || s.b.scalar_type() == torch::kBFloat16) return false;
  for (const auto* x : {&s.a, &s.c}) {
    if (!x->defined()) continue;
    if (x->scalar_type() != s.b.scalar_type() || x->sizes() != s.b.sizes()) return false;
    if (s.b.dim() != 2 && x->strides() != s.b.strides()) return false;
  }
  for (const auto* x : {&s.a, &s.b, &s.c}) {
    if (!x->defined()) continue;
    const bool dense = x->dim() == 2 ? x->stride(1) == 1 || x->size(1) == 1
                                     : x->is_non_overlapping_and_dense() &&
                                           x->stride(0) == x->numel() / x->size(0);
    if (!dense) return false;
  }
  for (const auto* x : {&s.scale, &s.weight, &s.added}) {
    if (x->defined() && x->scalar_type() != s.b.scalar_type()) return false;
  }
  return !s.a.defined() || !s.a.requires_grad();
}

Tensor row_sum(const RowSum& s) {
  const c10::cuda::CUDAGuard guard(s.b.device());
  auto out = torch::empty({s.b.size(0)}, s.b.options());
  cuda::row_sum(description(s), out.data_ptr(), stream());
  return out;
}

std::tuple<Tensor, Tensor> row_sum_backward(const Tensor& g, const RowSum& s) {
  const c10::cuda::CUDAGuard guard(s.b.device());
  // Elements in the order of b's; a matrix whose rows lie apart gets a dense one.
  const auto dense = [&] {
    return s.b.dim() == 2 ? torch::empty(s.b.sizes(), s.b.options())
                          : at::empty_strided(s.b.sizes(), s.b.strides(), s.b.options());
  };
  auto gb = dense();
  auto gc = s.c.defined() ? dense() : Tensor();
  cuda::row_sum_backward(description(s), row_vector(g), gb.data_ptr(),
                         s.c.defined() ? gc.data_ptr() : nullptr, stream());
  return {gb, gc};
}

Tensor sums(const std::vector<Tensor>& flat) {
  const c10::cuda::CUDAGuard guard(flat[0].device());
  const auto pieces = pieces_of(flat);
  const auto count = static_cast<int64_t>(pieces.size());
  auto out = torch::empty({count}, flat[0].options());
  cuda::sums_of_pieces(type_of(out), pieces.data(), count, out.data_ptr(), stream());
  return out;
}

Tensor end_to_end(const std::vector<Tensor>& flat, torch::ScalarType type, const Tensor& onto) {
  const c10::cuda::CUDAGuard guard(flat[0].device());
  const auto pieces = pieces_of(flat);
  int64_t size = 0;
  for (const auto& piece : pieces) size += piece.count;
  auto out = onto.defined() ? onto : torch::empty({size}, flat[0].options().dtype(type));
  cuda::end_to_end(type_of(flat[0]), pieces.data(), static_cast<int64_t>(pieces.size()),
                   type_of(out), out.data_ptr(), /*add=*/onto.defined(), stream());
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
