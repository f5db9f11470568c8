#include "ddaebm/ops/check.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "ddaebm/ops/adam.h"
#include "ddaebm/ops/attention.h"
#include "ddaebm/ops/branches.h"
#include "ddaebm/ops/conv.h"
#include "ddaebm/ops/group_norm.h"
#include "ddaebm/ops/resample.h"
#include "ddaebm/ops/row_sums.h"
#include "ddaebm/ops/timed_chain.h"
#include "ddaebm/ops/waves.h"
#include "ddaebm/tf32.h"

namespace ddaebm::ops {
namespace {

constexpr int64_t kTimes = 4;

// The largest error of all tensors, each relative to its largest entry; but what is small beside
// the others may be the rounding of a sum that cancels.
double difference(const std::vector<torch::Tensor>& fast, const std::vector<torch::Tensor>& plain) {
  const auto largest = [](const torch::Tensor& x) { return x.abs().max().item<double>(); };
  double greatest = 0.0;
  for (const auto& tensor : plain) greatest = std::max(greatest, largest(tensor));
  double worst = 0.0;
  for (size_t i = 0; i < fast.size(); ++i) {
    const double scale = std::max(largest(plain[i]), 0.01 * greatest);
    worst = std::max(worst, largest(fast[i] - plain[i]) / scale);
  }
  return worst;
}

CheckResult check_adam(const torch::TensorOptions& options, double allowed, const char* type) {
  Random random(options.device());
  const auto draw = [&] { return random.normal({10007}, options); };
  const auto g = draw();
  const auto dials = torch::full({2}, 0.5, options);
  std::vector<torch::Tensor> fast = {draw(), draw(), draw().abs(), draw()};
  std::vector<torch::Tensor> plain;
  for (const auto& tensor : fast) plain.push_back(tensor.clone());
  const AdamConstants constants{.beta1 = 0.3, .beta2 = 0.9, .eps = 1e-8, .average_decay = 0.99};
  adam(fast[0], g, fast[1], fast[2], fast[3], dials, constants);
  reference::adam(plain[0], g, plain[1], plain[2], plain[3], dials, constants);
  return {fmt::format("adam, {}", type), difference(fast, plain), allowed};
}

// x, t, and what the loss multiplies outputs by.
struct Batch {
  Batch(Random& random, const torch::TensorOptions& options, int64_t in, int64_t out)
      : x(random.normal({50, in}, options).requires_grad_()),
        t(random.integers(kTimes, {50})),
        of_output(random.normal({50, out}, options)),
        of_gradient(random.normal({50, in}, options)) {}
  torch::Tensor x, t, of_output, of_gradient;
};

std::vector<torch::Tensor> with_gradients(std::vector<torch::Tensor> outputs,
                                          const torch::Tensor& loss, const Batch& batch,
                                          const TimeMlpParts& net) {
  auto inputs = parameters(net);
  inputs.push_back(batch.x);
  const auto gradients = torch::autograd::grad({loss}, inputs);
  outputs.insert(outputs.end(), gradients.begin(), gradients.end());
  return outputs;
}

CheckResult check_network(const torch::TensorOptions& options, double allowed, const char* type,
                          NormPlace norm) {
  Random random(options.device());
  const auto net = random_time_mlp(random, options, 3, 2, norm);
  const Batch batch(random, options, 3, 2);
  const auto run = [&](auto network) {
    const auto y = network(net, batch.x, batch.t, /*training=*/true);
    auto all = with_gradients({y}, (y * batch.of_output).sum(), batch, net);
    for (const auto* part : {&net.x_branch, &net.trunk}) {
      for (const Dense& layer : *part) {
        if (!layer.norm.scale.defined()) continue;
        all.insert(all.end(),
                   {layer.norm.running_mean.clone(), layer.norm.running_variance.clone()});
        layer.norm.running_mean.zero_();
        layer.norm.running_variance.fill_(1.0);
      }
    }
    return all;
  };
  const char* norms = norm == NormPlace::none           ? ""
                      : norm == NormPlace::before_prelu ? " with norms"
                                                        : " with norms behind PReLUs";
  return {fmt::format("time_mlp{}, {}", norms, type),
          difference(run(time_mlp), run(reference::time_mlp)), allowed};
}

CheckResult check_network_and_gradient(const torch::TensorOptions& options, double allowed,
                                       const char* type) {
  Random random(options.device());
  const auto net = random_time_mlp(random, options, 3, 1, NormPlace::none);
  const Batch batch(random, options, 3, 1);
  const auto run = [&](auto network) {
    const auto [value, gradient] = network(net, batch.x, batch.t);
    const auto loss = (value * batch.of_output.squeeze(1)).sum() +
                      (gradient * batch.of_gradient).sum() + gradient.square().sum();
    return with_gradients({value, gradient}, loss, batch, net);
  };
  return {fmt::format("time_mlp_and_gradient, {}", type),
          difference(run(time_mlp_and_gradient), run(reference::time_mlp_and_gradient)), allowed};
}

// An operator on images: its result, the gradients of a random sum of it in all inputs, and the
// gradients of a random sum of those.
using ImageOperator = std::function<torch::Tensor(const std::vector<torch::Tensor>&)>;
std::vector<torch::Tensor> twice_differentiated(const ImageOperator& op,
                                                const std::vector<torch::Tensor>& inputs) {
  Random random(inputs[0].device());
  const auto y = op(inputs);
  const auto weight = random.normal(y.sizes(), y.options()).requires_grad_();
  auto all = torch::autograd::grad({(y * weight).sum()}, inputs, {}, /*retain_graph=*/true,
                                   /*create_graph=*/true);
  auto second = torch::zeros({}, y.options());
  for (const auto& gradient : all) {
    // Images alone: second derivatives are taken of gradients in x.
    if (gradient.dim() != 4 || gradient.sizes() != inputs[0].sizes()) continue;
    second = second + (gradient * random.normal(gradient.sizes(), gradient.options())).sum();
  }
  auto wanted = inputs;
  wanted.push_back(weight);
  const auto gradients =
      torch::autograd::grad({second}, wanted, {}, {}, false, /*allow_unused=*/true);
  for (size_t i = 0; i < wanted.size(); ++i) {
    all.push_back(gradients[i].defined() ? gradients[i] : torch::zeros_like(wanted[i]));
  }
  all.push_back(y);
  return all;
}

struct ImageCheck {
  std::string name;
  std::vector<std::vector<int64_t>> inputs;  // the first is the image
  ImageOperator fast, plain;
};

std::vector<ImageCheck> image_checks() {
  using Inputs = std::vector<torch::Tensor>;
  std::vector<ImageCheck> checks;
  const auto resampling = [&](const std::string& name, auto fast, auto plain) {
    for (const int64_t channels : {5, 8}) {
      checks.push_back({fmt::format("{}, {} channels", name, channels),
                        {{2, channels, 6, 8}},
                        [=](const Inputs& in) { return fast(in[0]); },
                        [=](const Inputs& in) { return plain(in[0]); }});
    }
  };
  for (const auto filter : {Filter::fir, Filter::box}) {
    const std::string name = filter == Filter::fir ? "fir" : "box";
    resampling(
        "upsample " + name, [=](const auto& x) { return upsample(x, filter); },
        [=](const auto& x) { return reference::upsample(x, filter); });
    resampling(
        "downsample " + name, [=](const auto& x) { return downsample(x, filter); },
        [=](const auto& x) { return reference::downsample(x, filter); });
  }
  resampling(
      "smooth", [](const auto& x) { return smooth(x); },
      [](const auto& x) { return reference::smooth(x); });
  for (const auto& [kernel, stride, padding] :
       {std::tuple<int64_t, int64_t, int64_t>{3, 1, 1}, {1, 1, 0}, {3, 2, 0}, {4, 2, 1}}) {
    const ConvShape shape{stride, padding};
    checks.push_back(
        {fmt::format("conv2d {0}x{0}, stride {1}", kernel, stride),
         {{2, 5, 8, 8}, {6, 5, kernel, kernel}, {6}},
         [=](const Inputs& in) { return conv2d(in[0], in[1], in[2], shape); },
         [=](const Inputs& in) { return reference::conv2d(in[0], in[1], in[2], shape); }});
  }
  for (const bool silu : {true, false}) {
    for (const bool adaptive : {true, false}) {
      struct Shape {
        int64_t width, groups;  // channels a group
        int64_t rows, columns;
        int64_t images = 3;
      };
      // The last two make a GPU put several blocks to one group, and many groups to one block.
      for (const auto& [width, groups, rows, columns, images] : {Shape{3, 2, 5, 4},
                                                                 {6, 2, 5, 4},
                                                                 {8, 2, 5, 4},
                                                                 {12, 8, 5, 4},
                                                                 {4, 8, 35, 33},
                                                                 {4, 32, 4, 4, 300}}) {
        const int64_t channels = width * groups;
        const GroupNormConfig config{.groups = groups, .silu = silu};
        const auto values =
            adaptive ? std::vector<int64_t>{images, channels} : std::vector<int64_t>{channels};
        checks.push_back(
            {fmt::format("group_norm{}{}, {} channels a group", silu ? " silu" : "",
                         adaptive ? " adaptive" : "", width),
             {{images, channels, rows, columns}, values, values},
             [=](const Inputs& in) { return group_norm(in[0], in[1], in[2], config); },
             [=](const Inputs& in) { return reference::group_norm(in[0], in[1], in[2], config); }});
        checks.push_back(
            {fmt::format("group_norm{}{} and its input, {} channels a group", silu ? " silu" : "",
                         adaptive ? " adaptive" : "", width),
             {{images, channels, rows, columns}, values, values},
             [=](const Inputs& in) {
               const auto [norm, input] = group_norm_and_input(in[0], in[1], in[2], config);
               return norm + input.square();
             },
             [=](const Inputs& in) {
               return reference::group_norm(in[0], in[1], in[2], config) + in[0].square();
             }});
        checks.push_back({fmt::format("group_norm{}{} of a sum, {} channels a group",
                                      silu ? " silu" : "", adaptive ? " adaptive" : "", width),
                          {{images, channels, rows, columns}, values, values, {images, channels}},
                          [=](const Inputs& in) {
                            return group_norm(in[0], in[3], in[1], in[2], config, Dropout());
                          },
                          [=](const Inputs& in) {
                            const auto sum = in[0] + in[3].unsqueeze(2).unsqueeze(3);
                            return reference::group_norm(sum, in[1], in[2], config);
                          }});
      }
    }
  }
  for (const int64_t channels : {5, 8}) {
    checks.push_back(
        {fmt::format("attention, {} channels", channels),
         {{3, channels, 4, channels},
          {channels, 3 * channels},
          {3 * channels},
          {channels, channels}},
         [](const Inputs& in) { return attention(in[0], in[1], in[2], in[3]); },
         [](const Inputs& in) { return reference::attention(in[0], in[1], in[2], in[3]); }});
  }
  for (const int64_t channels : {5, 8, 64}) {
    const int64_t side = channels == 64 ? 36 : 6;
    const std::vector<int64_t> image = {3, channels, side, side - 1};
    checks.push_back({fmt::format("residual, {} channels", channels),
                      {image, image, {3, channels}},
                      [](const Inputs& in) { return residual(in[0], in[1], in[2]); },
                      [](const Inputs& in) { return reference::residual(in[0], in[1], in[2]); }});
    checks.push_back({fmt::format("concatenate, {} channels", channels),
                      {image, {3, 4, side, side - 1}},
                      [](const Inputs& in) { return concatenate(in[0], in[1]); },
                      [](const Inputs& in) { return reference::concatenate(in[0], in[1]); }});
  }
  return checks;
}

CheckResult check_image(const ImageCheck& check, const torch::TensorOptions& options,
                        double allowed, const char* type) {
  Random random(options.device());
  std::vector<torch::Tensor> inputs;
  for (const auto& shape : check.inputs) {
    inputs.push_back((0.3 + random.normal(shape, options)).requires_grad_());
  }
  return {fmt::format("{}, {}", check.name, type),
          difference(twice_differentiated(check.fast, inputs),
                     twice_differentiated(check.plain, inputs)),
          allowed};
}

// Sums along rows, with gradients as an update takes them and, once more differentiated, as no
// kernel makes them.
CheckResult check_row_sums(const torch::TensorOptions& options, double allowed, const char* type) {
  Random random(options.device());
  constexpr int64_t kRows = 7;
  const auto draw = [&](at::IntArrayRef shape) { return random.normal(shape, options); };
  // The halves of a head lie side by side, images in any order.
  const auto head = draw({kRows, 10}).requires_grad_();
  const auto image =
      draw({kRows, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast).detach().requires_grad_();
  const auto target = draw({kRows, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto z = draw({kRows, 5});
  const auto scale = draw({kRows});
  const auto weight = draw({kRows});
  const auto added = draw({kRows});
  const auto given = draw({kRows});
  const auto along = draw({kRows, 10});
  const auto differentiated = [&](const auto& squares, const auto& nll, const auto& kl) {
    const auto half = head.chunk(2, 1);
    const auto all = torch::stack({squares(image, target, OfRow{scale, weight, added}),
                                   nll(z, half[0], half[1]), kl(half[0], half[1])});
    const auto loss = (all * given).sum();
    auto found = torch::autograd::grad({loss}, {head, image}, {}, /*retain_graph=*/true);
    const auto again = torch::autograd::grad({loss}, {head, image}, {}, true, true);
    const auto second =
        torch::autograd::grad({(again[0] * along).sum() + again[1].square().sum()}, {head, image});
    found.insert(found.end(), second.begin(), second.end());
    found.push_back(all);
    return found;
  };
  return {fmt::format("row sums, {}", type),
          difference(differentiated(weighted_squares, gaussian_nll, gaussian_kl),
                     differentiated(reference::weighted_squares, reference::gaussian_nll,
                                    reference::gaussian_kl)),
          allowed};
}

}  // namespace

TimeMlpParts random_time_mlp(Random& random, const torch::TensorOptions& options, int64_t in,
                             int64_t out, NormPlace norm) {
  const auto parameter = [&](at::IntArrayRef shape, double scale, double mean) {
    return (mean + scale * random.normal(shape, options)).requires_grad_();
  };
  const auto chain = [&](int64_t from, const std::vector<int64_t>& widths, bool with_norm) {
    std::vector<Dense> layers;
    for (size_t i = 0; i < widths.size(); ++i) {
      const int64_t to = widths[i];
      Dense layer;
      layer.weight = parameter({to, from}, 1.0 / std::sqrt(static_cast<double>(from)), 0.0);
      layer.bias = parameter({to}, 0.3, 0.0);
      if (i + 1 < widths.size()) {
        layer.slope = parameter({1}, 0.1, 0.25);
        if (with_norm) {
          layer.norm.scale = parameter({to}, 0.1, 1.0);
          layer.norm.shift = parameter({to}, 0.1, 0.0);
          layer.norm.running_mean = torch::zeros({to}, options);
          layer.norm.running_variance = torch::ones({to}, options);
        }
      }
      layers.push_back(layer);
      from = to;
    }
    return layers;
  };
  TimeMlpParts net;
  net.x_branch = chain(in, {5, 4}, norm != NormPlace::none);
  net.t_branch = chain(6, {7, 3}, false);
  net.trunk = chain(7, {37, 19, out}, norm != NormPlace::none);
  net.norm_after_prelu = norm == NormPlace::after_prelu;
  net.embeddings = random.normal({kTimes, 6}, options);
  return net;
}

// Layers with smooth bends over waves of x, their gradients as an update takes them, and those of
// the gradient in x.
CheckResult check_wave_layers(const torch::TensorOptions& options, double allowed, const char* type,
                              Bend bend) {
  Random random(options.device());
  constexpr int64_t kRows = 70;
  const auto leaf = [&](at::IntArrayRef shape) {
    return random.normal(shape, options).requires_grad_();
  };
  const auto x = leaf({kRows, 3});
  const auto frequencies = torch::pow(2.0, torch::arange(2, options));
  const auto t = random.integers(kTimes, {kRows});
  std::vector<torch::Tensor> inputs = {x};
  std::vector<TimedDense> layers;
  int64_t columns = 3 * (1 + 2 * frequencies.size(0));
  for (const int64_t width : {37, 150, 40, 2}) {
    const bool last = width == 2;
    TimedDense layer;
    layer.weight = (random.normal({width, columns}, options) / std::sqrt(columns)).requires_grad_();
    layer.bias = leaf({width});
    if (!last && width != 40) layer.before = leaf({kTimes, width});
    if (!last) layer.bend = bend;
    for (const auto& tensor : {layer.weight, layer.bias, layer.before}) {
      if (tensor.defined()) inputs.push_back(tensor);
    }
    layers.push_back(layer);
    columns = width;
  }
  const auto weight = random.normal({kRows, columns}, options);
  const auto differentiated = [&](const torch::Tensor& y) {
    const auto loss = (y * weight).sum();
    auto found = torch::autograd::grad({loss}, inputs, {}, /*retain_graph=*/true);
    const auto of_x = torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0];
    for (const auto& twice : torch::autograd::grad({of_x.square().sum()}, inputs, {}, true, false,
                                                   /*allow_unused=*/true)) {
      if (twice.defined()) found.push_back(twice);
    }
    found.push_back(y);
    return found;
  };
  return {
      fmt::format("layers with {} over waves, {}", bend == Bend::silu ? "SiLU" : "softplus", type),
      difference(
          differentiated(timed_chain(layers, waves(x, frequencies), t)),
          differentiated(reference::timed_chain(layers, reference::waves(x, frequencies), t))),
      allowed};
}

std::vector<CheckResult> check_all(torch::Device device) {
  // A twin must not differ by what TF32 rounds away.
  const AllowTf32 exact(false);
  std::vector<CheckResult> results;
  const auto both = [&](double allowed, auto check) {
    results.push_back(check(torch::TensorOptions(torch::kDouble).device(device), 1e-12, "float64"));
    results.push_back(
        check(torch::TensorOptions(torch::kFloat).device(device), allowed, "float32"));
  };
  both(1e-6, check_adam);
  both(2e-5, check_row_sums);
  for (const auto norm : {NormPlace::none, NormPlace::before_prelu, NormPlace::after_prelu}) {
    both(1e-4, [&](const auto&... given) { return check_network(given..., norm); });
  }
  for (const auto bend : {Bend::silu, Bend::softplus}) {
    both(1e-4, [&](const auto&... given) { return check_wave_layers(given..., bend); });
  }
  both(1e-4, check_network_and_gradient);
  for (const ImageCheck& image : image_checks()) {
    both(2e-5, [&](const auto&... given) { return check_image(image, given...); });
  }
  return results;
}

}  // namespace ddaebm::ops
