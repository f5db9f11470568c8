#include "ddaebm/ops/cpu_images.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TracerMode.h>

#include "ddaebm/ops/vectorise.h"

namespace ddaebm::ops::cpu {
namespace {

using torch::Tensor;

Tensor channels_last(const Tensor& x) { return x.contiguous(at::MemoryFormat::ChannelsLast); }
Tensor empty_images(const Tensor& like, int64_t channels, int64_t height, int64_t width) {
  return at::empty({like.size(0), channels, height, width}, like.options(),
                   at::MemoryFormat::ChannelsLast);
}
Tensor empty_images(const Tensor& like) {
  return empty_images(like, like.size(1), like.size(2), like.size(3));
}
// [N, C] in the images' type, row by row.
Tensor values(const Tensor& of_channels, const Tensor& images) {
  return of_channels.to(images.scalar_type()).contiguous();
}

// e^x to two units in the last place of a float32, by arithmetic that is vectorised: 2^k e^r with
// |r| < ln 2 / 2, and k where adding 1.5 2^23 leaves it, in the lowest bits.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr float kShift = 12582912.0F;
  const float bounded = std::min(std::max(x, -87.0F), 88.0F);
  const float shifted = bounded * 1.44269504F + kShift;
  const float k = shifted - kShift;
  const float r = (bounded - k * 0.693359375F) + k * 2.12194440e-4F;
  // Written out: a loop over the coefficients would keep those that call from being vectorised.
  float series = 1.0F / 5040;
  series = series * r + 1.0F / 720;
  series = series * r + 1.0F / 120;
  series = series * r + 1.0F / 24;
  series = series * r + 1.0F / 6;
  series = series * r + 0.5F;
  series = series * r + 1.0F;
  series = series * r + 1.0F;
  return series * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000U);
}
[[gnu::always_inline]] inline double exponential(double x) { return std::exp(x); }

// silu(u) = u s(u), and its derivatives; without it the identity's.
template <class T, bool silu>
struct Bent {
  [[gnu::always_inline]] inline explicit Bent(T u_) : u(u_) {
    if constexpr (silu) s = 1 / (1 + exponential(-u));
  }
  [[gnu::always_inline]] inline T value() const { return silu ? u * s : u; }
  [[gnu::always_inline]] inline T first() const { return silu ? s * (1 + u * (1 - s)) : T(1); }
  [[gnu::always_inline]] inline T second() const {
    return silu ? s * (1 - s) * (2 + u * (1 - 2 * s)) : T(0);
  }
  T u, s = 0;
};

// The loops over pixels and channels are functions of their own: only so does the compiler take
// `restrict` at its word, and vectorises. Each pixel's n channels begin `stride` numbers apart;
// n channels of an output that goes on to another loop lie as the input's do.

// What is known of each channel: x - centre, times inverse, is normal.
template <class T>
struct Channels {
  explicit Channels(int64_t n) : centre(n), inverse(n), scale(n), shift(n) {}
  std::vector<T> centre, inverse, scale, shift;
};

template <class T>
DDAEBM_VECTORISE void moments(int64_t pixels, int64_t stride, int64_t n, const T* __restrict x,
                              const T* __restrict origin, T* __restrict sums,
                              T* __restrict squares) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const T d = x[p * stride + j] - origin[j];
      sums[j] += d;
      squares[j] += d * d;
    }
  }
}

template <class T, bool silu>
DDAEBM_VECTORISE void normalise(int64_t pixels, int64_t stride, int64_t n, const T* __restrict x,
                                const T* __restrict centre, const T* __restrict gain,
                                const T* __restrict shift, T* __restrict y) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      y[at] = Bent<T, silu>((x[at] - centre[j]) * gain[j] + shift[j]).value();
    }
  }
}

// gu = gy silu'(u), and its sums and those of gu n.
template <class T, bool silu>
DDAEBM_VECTORISE void backward_sums(int64_t pixels, int64_t stride, int64_t n,
                                    const T* __restrict gy, const T* __restrict x,
                                    const T* __restrict centre, const T* __restrict inverse,
                                    const T* __restrict scale, const T* __restrict shift,
                                    T* __restrict of_shift, T* __restrict of_scale,
                                    T* __restrict gu) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      const T normal = (x[at] - centre[j]) * inverse[j];
      const T g = gy[at] * Bent<T, silu>(normal * scale[j] + shift[j]).first();
      of_shift[j] += g;
      of_scale[j] += g * normal;
      gu[at] = g;
    }
  }
}

// gx = inverse (scale gu - mean - normal along), and its sums.
template <class T>
DDAEBM_VECTORISE void backward_input(int64_t pixels, int64_t stride, int64_t n,
                                     const T* __restrict x, const T* __restrict centre,
                                     const T* __restrict inverse, const T* __restrict scale,
                                     const T* __restrict mean, const T* __restrict along,
                                     T* __restrict sums, T* __restrict g) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      const T normal = (x[at] - centre[j]) * inverse[j];
      const T gx = inverse[j] * (scale[j] * g[at] - mean[j] - normal * along[j]);
      sums[j] += gx;
      g[at] = gx;
    }
  }
}

// Sums of v, v n, gu, gu n and v gu, each `n` long.
template <class T, bool silu>
DDAEBM_VECTORISE void twice_sums(int64_t pixels, int64_t stride, int64_t n, const T* __restrict v,
                                 const T* __restrict gy, const T* __restrict x,
                                 const T* __restrict centre, const T* __restrict inverse,
                                 const T* __restrict scale, const T* __restrict shift,
                                 T* __restrict sums) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      const T normal = (x[at] - centre[j]) * inverse[j];
      const T gu = gy[at] * Bent<T, silu>(normal * scale[j] + shift[j]).first();
      sums[j] += v[at];
      sums[n + j] += v[at] * normal;
      sums[2 * n + j] += gu;
      sums[3 * n + j] += gu * normal;
      sums[4 * n + j] += v[at] * gu;
    }
  }
}

// With w = scale inverse (v - mean_v - normal along_v): the gradient of gy, w silu'(u); that of u,
// q = w gy silu''(u), and the sums of q and q n.
template <class T, bool silu>
DDAEBM_VECTORISE void twice_middle(int64_t pixels, int64_t stride, int64_t n, const T* __restrict v,
                                   const T* __restrict gy, const T* __restrict x,
                                   const T* __restrict centre, const T* __restrict inverse,
                                   const T* __restrict scale, const T* __restrict shift,
                                   const T* __restrict mean_v, const T* __restrict along_v,
                                   T* __restrict sums, T* __restrict ggy, T* __restrict q) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      const T normal = (x[at] - centre[j]) * inverse[j];
      const Bent<T, silu> bent(normal * scale[j] + shift[j]);
      const T w = scale[j] * inverse[j] * (v[at] - mean_v[j] - normal * along_v[j]);
      const T of_u = w * gy[at] * bent.second();
      ggy[at] = w * bent.first();
      sums[j] += of_u;
      sums[n + j] += of_u * normal;
      q[at] = of_u;
    }
  }
}

// gx = inverse (scale q - inverse (along_k v + along_v k) - mean - normal along), and its sums;
// it takes the place of q.
template <class T, bool silu>
DDAEBM_VECTORISE void twice_input(int64_t pixels, int64_t stride, int64_t n, const T* __restrict v,
                                  const T* __restrict gy, const T* __restrict x,
                                  const T* __restrict centre, const T* __restrict inverse,
                                  const T* __restrict scale, const T* __restrict shift,
                                  const T* __restrict along_v, const T* __restrict along_k,
                                  const T* __restrict mean, const T* __restrict along,
                                  T* __restrict sums, T* __restrict q) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = p * stride + j;
      const T normal = (x[at] - centre[j]) * inverse[j];
      const T k = scale[j] * gy[at] * Bent<T, silu>(normal * scale[j] + shift[j]).first();
      const T gn = scale[j] * q[at] - inverse[j] * (along_k[j] * v[at] + along_v[j] * k);
      const T gx = inverse[j] * (gn - mean[j] - normal * along[j]);
      sums[j] += gx;
      q[at] = gx;
    }
  }
}

template <class T>
DDAEBM_VECTORISE void sum_of_three(int64_t pixels, int64_t n, const T* __restrict a,
                                   const T* __restrict b, const T* __restrict bias, T gain,
                                   T* __restrict y) {
  for (int64_t p = 0; p < pixels; ++p) {
    for (int64_t j = 0; j < n; ++j) y[p * n + j] = (a[p * n + j] + b[p * n + j] + bias[j]) * gain;
  }
}

// Half a random word decides on each of n elements, which begin at the `from`-th.
struct Dice {
  uint32_t low, high, dropped;
};
template <class T>
DDAEBM_VECTORISE void throw_dice(int64_t n, uint32_t from, const Dice& dice, T gain,
                                 const T* __restrict x, T* __restrict y) {
  const auto [low, high, dropped] = dice;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t at = from + static_cast<uint32_t>(i);
    uint32_t word = ((at & ~1U) ^ low) * 0x85ebca6bU;
    word = (word ^ (word >> 15)) * high;
    word = (word ^ (word >> 13)) * 0xc2b2ae35U;
    word ^= word >> 16;
    const uint32_t half = (at & 1U) == 0 ? word & 0xffffU : word >> 16;
    y[i] = half < dropped ? T(0) : x[i] * gain;
  }
}

template <class T, int taps>
DDAEBM_VECTORISE void weigh(int64_t n, const T* __restrict a, const T* __restrict b,
                            const T* __restrict c, const T* __restrict d, const T* __restrict by,
                            T* __restrict y) {
  for (int64_t j = 0; j < n; ++j) {
    T sum = by[0] * a[j] + by[1] * b[j];
    if constexpr (taps > 2) sum += by[2] * c[j] + by[3] * d[j];
    y[j] = sum;
  }
}

// Sums of each channel over pixels: rows of numbers, made in T over some hundred pixels at a time,
// and those added up in float64.
template <class T>
class Sums {
 public:
  Sums(int64_t rows, int64_t n)
      : n_(n), part_(static_cast<size_t>(rows * n)), total_(static_cast<size_t>(rows * n)) {}
  // Calls add(first pixel, pixels, sums) for parts of them.
  template <class F>
  void over(int64_t pixels, const F& add) {
    constexpr int64_t kPart = 256;
    std::fill(total_.begin(), total_.end(), 0.0);
    for (int64_t p = 0; p < pixels; p += kPart) {
      std::fill(part_.begin(), part_.end(), T(0));
      add(p, std::min(kPart, pixels - p), part_.data());
      for (size_t i = 0; i < part_.size(); ++i) total_[i] += part_[i];
    }
  }
  double operator()(int64_t row, int64_t channel) const {
    return total_[static_cast<size_t>(row * n_ + channel)];
  }

 private:
  int64_t n_;
  std::vector<T> part_;
  std::vector<double> total_;
};

// Some whole groups of one image, which a thread works on at a time.
struct Span {
  int64_t image, first_group, groups;
};
// Calls body for all of them: whole images, where there are enough for all threads.
template <class F>
void for_spans(int64_t images, int64_t groups, const F& body) {
  const int64_t threads = at::get_num_threads();
  const int64_t pieces = std::min(groups, (threads + images - 1) / images);
  at::parallel_for(0, images * pieces, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t piece = i % pieces;
      const int64_t first = groups * piece / pieces;
      body(Span{i / pieces, first, groups * (piece + 1) / pieces - first});
    }
  });
}

// The tensors of a group norm as numbers. Channels last, [N, H, W, C].
template <class T>
struct Norm {
  Norm(const kernels::GroupNormParts& parts, const GroupNormConfig& config)
      : x_(channels_last(parts.x)),
        scale_(values(parts.scale, x_)),
        shift_(values(parts.shift, x_)),
        add_(parts.add.defined() ? values(parts.add, x_) : Tensor()),
        images(x_.size(0)),
        channels(x_.size(1)),
        pixels(x_.size(2) * x_.size(3)),
        groups(config.groups),
        width(channels / groups),
        x(x_.data_ptr<T>()),
        mean(parts.mean.data_ptr<T>()),
        inverse(parts.inverse.data_ptr<T>()) {}

  int64_t first(const Span& span) const { return span.first_group * width; }
  int64_t count(const Span& span) const { return span.groups * width; }
  // Of the span's first channel at a pixel.
  int64_t place(const Span& span, int64_t pixel) const {
    return (span.image * pixels + pixel) * channels + first(span);
  }
  T added(const Span& span, int64_t j) const {
    return add_.defined() ? add_.data_ptr<T>()[span.image * channels + first(span) + j] : T(0);
  }
  Channels<T> channels_of(const Span& span) const {
    Channels<T> of(count(span));
    const int64_t from = span.image * channels + first(span);
    for (int64_t j = 0; j < count(span); ++j) {
      const int64_t group = span.image * groups + span.first_group + j / width;
      const auto at = static_cast<size_t>(j);
      of.centre[at] = mean[group] - added(span, j);
      of.inverse[at] = inverse[group];
      of.scale[at] = scale_.data_ptr<T>()[from + j];
      of.shift[at] = shift_.data_ptr<T>()[from + j];
    }
    return of;
  }
  // A number for each channel: f(channel) averaged over the pixels of its group, where f gives the
  // sum over those of one channel.
  template <class F>
  std::vector<T> group_means(const Span& span, const F& f) const {
    std::vector<T> found(static_cast<size_t>(count(span)));
    for (int64_t g = 0; g < span.groups; ++g) {
      double sum = 0;
      for (int64_t j = g * width; j < (g + 1) * width; ++j) sum += f(j);
      const auto mean_of_group = static_cast<T>(sum / static_cast<double>(pixels * width));
      std::fill_n(found.begin() + g * width, width, mean_of_group);
    }
    return found;
  }

 private:
  Tensor x_, scale_, shift_, add_;

 public:
  int64_t images, channels, pixels, groups, width;
  const T* x;
  T *mean, *inverse;
};

// Calls f with whether there is a silu, as a type.
template <class F>
void with_silu(bool silu, const F& f) {
  silu ? f(std::true_type()) : f(std::false_type());
}

// Of each group of the span, from moments about the first pixel's values.
template <class T>
void find_moments(const Norm<T>& norm, const Span& span, double eps) {
  const int64_t n = norm.count(span);
  const T* origin = norm.x + norm.place(span, 0);
  Sums<T> sums(2, n);
  sums.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
    moments(pixels, norm.channels, n, norm.x + norm.place(span, p), origin, part, part + n);
  });
  const auto pixels = static_cast<double>(norm.pixels);
  const auto mean_of = [&](int64_t j) {
    return static_cast<double>(origin[j]) + norm.added(span, j) + sums(0, j) / pixels;
  };
  for (int64_t g = 0; g < span.groups; ++g) {
    const auto width = static_cast<double>(norm.width);
    double mean = 0;
    double squares = 0;
    for (int64_t j = g * norm.width; j < (g + 1) * norm.width; ++j) mean += mean_of(j) / width;
    for (int64_t j = g * norm.width; j < (g + 1) * norm.width; ++j) {
      const double off = mean_of(j) - mean;
      squares += sums(1, j) - sums(0, j) * sums(0, j) / pixels + pixels * off * off;
    }
    const int64_t group = span.image * norm.groups + span.first_group + g;
    norm.mean[group] = static_cast<T>(mean);
    norm.inverse[group] = static_cast<T>(1 / std::sqrt(squares / (pixels * width) + eps));
  }
}

template <class T>
void forward(const Norm<T>& norm, const GroupNormConfig& config, T* y) {
  for_spans(norm.images, norm.groups, [&](const Span& span) {
    find_moments(norm, span, config.eps);
    auto of = norm.channels_of(span);
    for (size_t j = 0; j < of.scale.size(); ++j) of.scale[j] *= of.inverse[j];
    const int64_t from = norm.place(span, 0);
    with_silu(config.silu, [&](auto silu) {
      normalise<T, silu>(norm.pixels, norm.channels, norm.count(span), norm.x + from,
                         of.centre.data(), of.scale.data(), of.shift.data(), y + from);
    });
  });
}

// What the gradients of scale, shift and addition are, [3, N, C].
template <class T>
struct ChannelGradients {
  void set(const Norm<T>& norm, const Span& span, int64_t part, int64_t j, double value) const {
    if (to == nullptr) return;
    const int64_t row = part * norm.images + span.image;
    to[row * norm.channels + norm.first(span) + j] = static_cast<T>(value);
  }
  T* to;  // null: not wanted
};

template <class T>
void backward(const Norm<T>& norm, const GroupNormConfig& config, const T* gy, T* gx,
              const ChannelGradients<T>& channels) {
  for_spans(norm.images, norm.groups, [&](const Span& span) {
    const auto of = norm.channels_of(span);
    const int64_t n = norm.count(span);
    Sums<T> sums(2, n);
    sums.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
      const int64_t at = norm.place(span, p);
      with_silu(config.silu, [&](auto silu) {
        backward_sums<T, silu>(pixels, norm.channels, n, gy + at, norm.x + at, of.centre.data(),
                               of.inverse.data(), of.scale.data(), of.shift.data(), part, part + n,
                               gx + at);
      });
    });
    const auto scaled = [&](int64_t row) {
      return norm.group_means(
          span, [&](int64_t j) { return of.scale[static_cast<size_t>(j)] * sums(row, j); });
    };
    const auto mean = scaled(0);
    const auto along = scaled(1);
    Sums<T> of_input(1, n);
    of_input.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
      const int64_t at = norm.place(span, p);
      backward_input(pixels, norm.channels, n, norm.x + at, of.centre.data(), of.inverse.data(),
                     of.scale.data(), mean.data(), along.data(), part, gx + at);
    });
    for (int64_t j = 0; j < n; ++j) {
      channels.set(norm, span, 0, j, sums(1, j));
      channels.set(norm, span, 1, j, sums(0, j));
      channels.set(norm, span, 2, j, of_input(0, j));
    }
  });
}

// See kernels::group_norm_backward_twice for the formulas and their letters. Means over a group of
// what is made of v, n and k follow from sums over pixels of each channel.
template <class T>
void backward_twice(const Norm<T>& norm, const GroupNormConfig& config, const T* v, const T* gy,
                    T* ggy, T* gx, const ChannelGradients<T>& channels) {
  for_spans(norm.images, norm.groups, [&](const Span& span) {
    const auto of = norm.channels_of(span);
    const int64_t n = norm.count(span);
    const auto scale = [&](int64_t j) {
      return static_cast<double>(of.scale[static_cast<size_t>(j)]);
    };
    Sums<T> sums(5, n);
    sums.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
      const int64_t at = norm.place(span, p);
      with_silu(config.silu, [&](auto silu) {
        twice_sums<T, silu>(pixels, norm.channels, n, v + at, gy + at, norm.x + at,
                            of.centre.data(), of.inverse.data(), of.scale.data(), of.shift.data(),
                            part);
      });
    });
    const auto mean_v = norm.group_means(span, [&](int64_t j) { return sums(0, j); });
    const auto along_v = norm.group_means(span, [&](int64_t j) { return sums(1, j); });
    const auto mean_k = norm.group_means(span, [&](int64_t j) { return scale(j) * sums(2, j); });
    const auto along_k = norm.group_means(span, [&](int64_t j) { return scale(j) * sums(3, j); });
    const auto mean_vk = norm.group_means(span, [&](int64_t j) { return scale(j) * sums(4, j); });
    Sums<T> of_q(2, n);
    of_q.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
      const int64_t at = norm.place(span, p);
      with_silu(config.silu, [&](auto silu) {
        twice_middle<T, silu>(pixels, norm.channels, n, v + at, gy + at, norm.x + at,
                              of.centre.data(), of.inverse.data(), of.scale.data(), of.shift.data(),
                              mean_v.data(), along_v.data(), part, ggy + at, gx + at);
      });
    });
    auto mean = norm.group_means(span, [&](int64_t j) { return scale(j) * of_q(0, j); });
    auto along = norm.group_means(span, [&](int64_t j) { return scale(j) * of_q(1, j); });
    for (size_t j = 0; j < mean.size(); ++j) {
      const T r = of.inverse[j];
      mean[j] -= r * (along_k[j] * mean_v[j] + along_v[j] * mean_k[j]);
      // The deviation's own part is constant times n.
      const T of_deviation = r * (mean_vk[j] - mean_v[j] * mean_k[j] - along_v[j] * along_k[j]);
      along[j] += of_deviation - 2 * r * along_k[j] * along_v[j];
    }
    Sums<T> of_input(1, n);
    of_input.over(norm.pixels, [&](int64_t p, int64_t pixels, T* part) {
      const int64_t at = norm.place(span, p);
      with_silu(config.silu, [&](auto silu) {
        twice_input<T, silu>(pixels, norm.channels, n, v + at, gy + at, norm.x + at,
                             of.centre.data(), of.inverse.data(), of.scale.data(), of.shift.data(),
                             along_v.data(), along_k.data(), mean.data(), along.data(), part,
                             gx + at);
      });
    });
    for (int64_t j = 0; j < n; ++j) {
      const auto at = static_cast<size_t>(j);
      const double of_p =
          of.inverse[at] * (sums(4, j) - mean_v[at] * sums(2, j) - along_v[at] * sums(3, j));
      channels.set(norm, span, 0, j, of_p + of_q(1, j));
      channels.set(norm, span, 1, j, of_q(0, j));
      channels.set(norm, span, 2, j, of_input(0, j));
    }
  });
}

// The pixels and weights of which an output of a FIR is made, along one axis; weights of those that
// are not there are zero.
struct Taps {
  std::array<int64_t, 4> from{};
  std::array<double, 4> weight{};
  int64_t count = 0;
};
// The kernel meets the input with up - 1 zeros behind each pixel, `pad` zeros before all of them.
std::vector<Taps> taps_of(int64_t in, int64_t out, const kernels::FirSteps& steps) {
  constexpr std::array<double, 4> kKernel = {0.125, 0.375, 0.375, 0.125};
  std::vector<Taps> all(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    Taps& taps = all[static_cast<size_t>(o)];
    for (int64_t k = 0; k < 4; ++k) {
      const int64_t place = o * steps.down + k - steps.pad;
      if (place < 0 || place % steps.up != 0 || place / steps.up >= in) continue;
      const auto next = static_cast<size_t>(taps.count++);
      taps.from.at(next) = place / steps.up;
      taps.weight.at(next) = kKernel.at(static_cast<size_t>(k));
    }
  }
  return all;
}

// y[0..n) of rows or pixels that begin `step` numbers apart.
template <class T>
void weigh(int64_t n, const T* x, int64_t step, const Taps& taps, double gain, T* y) {
  std::array<T, 4> by{};
  std::array<const T*, 4> at{};
  for (size_t k = 0; k < 4; ++k) {
    by.at(k) = static_cast<T>(gain * taps.weight.at(k));
    at.at(k) = x + taps.from.at(k) * step;
  }
  const auto add = taps.count <= 2 ? weigh<T, 2> : weigh<T, 4>;
  add(n, at[0], at[1], at[2], at[3], by.data(), y);
}

}  // namespace

bool takes(const Tensor& x) {
  const bool type = x.scalar_type() == torch::kFloat || x.scalar_type() == torch::kDouble;
  return type && x.is_cpu() && x.dim() == 4 && x.numel() > 0 &&
         !at::tracer::impl::is_dispatch_enabled();
}

Tensor group_norm_forward(kernels::GroupNormParts& parts, const GroupNormConfig& config) {
  const auto& x = parts.x;
  parts.mean = at::empty({x.size(0), config.groups}, x.options());
  parts.inverse = at::empty_like(parts.mean);
  auto y = empty_images(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "group_norm", [&] {
    forward(Norm<scalar_t>(parts, config), config, y.data_ptr<scalar_t>());
  });
  return y;
}

kernels::GroupNormGradients group_norm_backward(const Tensor& gy,
                                                const kernels::GroupNormParts& parts,
                                                const GroupNormConfig& config, bool channels_wanted,
                                                const Tensor& more) {
  const auto& x = parts.x;
  const auto g = channels_last(gy);
  auto gx = empty_images(x);
  auto channels = channels_wanted ? at::empty({3, x.size(0), x.size(1)}, x.options()) : Tensor();
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "group_norm_backward", [&] {
    backward(Norm<scalar_t>(parts, config), config, g.data_ptr<scalar_t>(), gx.data_ptr<scalar_t>(),
             {channels_wanted ? channels.data_ptr<scalar_t>() : nullptr});
  });
  if (more.defined()) gx.add_(more);
  return {gx, channels};
}

kernels::GroupNormSecondGradients group_norm_backward_twice(const Tensor& v, const Tensor& gy,
                                                            const kernels::GroupNormParts& parts,
                                                            const GroupNormConfig& config) {
  const auto& x = parts.x;
  const auto direction = channels_last(v);
  const auto g = channels_last(gy);
  auto ggy = empty_images(x);
  auto gx = empty_images(x);
  auto channels = at::empty({3, x.size(0), x.size(1)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "group_norm_backward_twice", [&] {
    backward_twice(Norm<scalar_t>(parts, config), config, direction.data_ptr<scalar_t>(),
                   g.data_ptr<scalar_t>(), ggy.data_ptr<scalar_t>(), gx.data_ptr<scalar_t>(),
                   {channels.data_ptr<scalar_t>()});
  });
  return {ggy, gx, channels};
}

Tensor scaled_sum(const Tensor& a, const Tensor& b, const Tensor& bias, double gain) {
  const auto first = channels_last(a);
  const auto second = channels_last(b);
  const auto of_channels = values(bias, a);
  auto y = empty_images(a);
  const int64_t pixels = a.size(2) * a.size(3);
  const int64_t n = a.size(1);
  constexpr int64_t kWorthSharing = 16384;  // numbers a thread
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "scaled_sum", [&] {
    const auto* added = of_channels.data_ptr<scalar_t>();
    at::parallel_for(0, a.size(0) * pixels, kWorthSharing / n + 1, [&](int64_t from, int64_t to) {
      while (from < to) {
        const int64_t image = from / pixels;
        const int64_t count = std::min(to, (image + 1) * pixels) - from;
        sum_of_three(count, n, first.data_ptr<scalar_t>() + from * n,
                     second.data_ptr<scalar_t>() + from * n, added + image * n,
                     static_cast<scalar_t>(gain), y.data_ptr<scalar_t>() + from * n);
        from += count;
      }
    });
  });
  return y;
}

Tensor drop(const Tensor& x, const Dropout& dropout) {
  const auto in = channels_last(x);
  auto y = empty_images(x);
  const auto seed = static_cast<uint64_t>(dropout.seed.item<int64_t>()) +
                    static_cast<uint64_t>(dropout.salt) * 0x9e3779b97f4a7c15U;
  const double dropped = std::round(65536.0 * dropout.rate);
  const Dice dice = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) | 1U,
                     static_cast<uint32_t>(dropped)};
  constexpr int64_t kWorthSharing = 16384;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "drop", [&] {
    at::parallel_for(0, x.numel(), kWorthSharing, [&](int64_t from, int64_t to) {
      throw_dice(to - from, static_cast<uint32_t>(from), dice,
                 static_cast<scalar_t>(65536.0 / (65536.0 - dropped)),
                 in.data_ptr<scalar_t>() + from, y.data_ptr<scalar_t>() + from);
    });
  });
  return y;
}

Tensor concatenate(const Tensor& a, const Tensor& b) {
  const auto first = channels_last(a);
  const auto second = channels_last(b);
  auto y = empty_images(a, a.size(1) + b.size(1), a.size(2), a.size(3));
  const size_t of_a = static_cast<size_t>(a.size(1)) * a.element_size();
  const size_t of_b = static_cast<size_t>(b.size(1)) * a.element_size();
  const auto* from_a = static_cast<const char*>(first.data_ptr());
  const auto* from_b = static_cast<const char*>(second.data_ptr());
  auto* to = static_cast<char*>(y.data_ptr());
  constexpr int64_t kWorthSharing = 128;  // pixels a thread
  at::parallel_for(0, a.size(0) * a.size(2) * a.size(3), kWorthSharing,
                   [&](int64_t begin, int64_t end) {
                     for (auto p = static_cast<size_t>(begin); p < static_cast<size_t>(end); ++p) {
                       std::memcpy(to + p * (of_a + of_b), from_a + p * of_a, of_a);
                       std::memcpy(to + p * (of_a + of_b) + of_a, from_b + p * of_b, of_b);
                     }
                   });
  return y;
}

Tensor fir(const Tensor& x, int64_t out_height, int64_t out_width, const kernels::FirSteps& steps) {
  const auto in = channels_last(x);
  const int64_t channels = x.size(1);
  const int64_t row = x.size(3) * channels;
  auto out = empty_images(x, channels, out_height, out_width);
  const auto lines = taps_of(x.size(2), out_height, steps);
  const auto columns = taps_of(x.size(3), out_width, steps);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fir", [&] {
    at::parallel_for(0, x.size(0) * out_height, 1, [&](int64_t from, int64_t to) {
      std::vector<scalar_t> line(static_cast<size_t>(row));
      for (int64_t i = from; i < to; ++i) {
        const auto* image = in.data_ptr<scalar_t>() + i / out_height * x.size(2) * row;
        weigh(row, image, row, lines[static_cast<size_t>(i % out_height)], steps.gain, line.data());
        auto* y = out.data_ptr<scalar_t>() + i * out_width * channels;
        for (const Taps& taps : columns) {
          weigh(channels, line.data(), channels, taps, 1.0, y);
          y += channels;
        }
      }
    });
  });
  return out;
}

}  // namespace ddaebm::ops::cpu
