#include "ddaebm/ops/timed_chain.h"

#include <ATen/TracerMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "ddaebm/ops/beside.h"
#include "ddaebm/ops/dense_kernels.h"

namespace ddaebm::ops {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Calls f with each tensor of the layers that is there, in order.
template <class Layers, class F>
void for_parameters(Layers& layers, const F& f) {
  for (auto& l : layers) {
    for (auto* tensor : {&l.weight, &l.bias, &l.slope, &l.after, &l.before}) {
      if (tensor->defined()) f(*tensor);
    }
  }
}

struct Call {
  const std::vector<TimedDense>& layers;
  const Tensor& t;
};

// The gradients of what a layer adds to its product, given those of the sum.
void add_up_rows(const Tensor& g, const TimedDense& l, const Tensor& t, TimedDense& found) {
  if (l.before.defined()) {
    found.before = kernels::sum_rows(g, t, l.before.size(0));
    found.bias = found.before.sum(0);
  } else {
    found.bias = kernels::sum_rows(g, {}, 1).squeeze(0);
  }
}

struct Held : torch::CustomClassHolder {
  std::vector<TimedDense> layers;  // which tensors there are; their values are saved variables
};

// Saved are x, t, the parameters, then what enters each product and what enters each PReLU or SiLU.
struct Evaluate : Function<Evaluate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, at::TensorList parameters,
                        const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    variable_list saved = {x, call.t};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    Tensor y = x;
    for (const TimedDense& l : call.layers) {
      saved.push_back(y);
      const kernels::Matrix h = {y, l.weight.t()};
      const auto bias = l.bias.unsqueeze(0);
      if (l.slope.defined()) {
        auto bent = kernels::bias_prelu(h, bias, {}, l.slope, l.after, call.t);
        saved.push_back(bent.h);
        y = bent.y;
      } else if (l.silu) {
        auto bent = kernels::bias_silu(h, l.bias, l.before, call.t);
        saved.push_back(bent.h);
        y = bent.y;
      } else {
        y = kernels::add_bias(h, bias, {});
      }
    }
    ctx->save_for_backward(saved);
    auto held = c10::make_intrusive<Held>();
    held->layers = call.layers;
    ctx->saved_data["layers"] = c10::IValue::make_capsule(std::move(held));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    auto layers = static_cast<const Held&>(*ctx->saved_data["layers"].toCapsule()).layers;
    size_t next = 2;
    for_parameters(layers, [&](Tensor& tensor) { tensor = saved[next++]; });
    if (torch::GradMode::is_enabled()) return plainly(ctx, layers, saved, given[0], next);

    const at::AutoDispatchBelowADInplaceOrView plain;
    bool parameters = false;
    for (size_t i = 1; i < next - 1; ++i) parameters = parameters || ctx->needs_input_grad(i);
    kernels::Matrix given_back = {given[0].contiguous(), {}};  // what a layer's output is given
    std::vector<TimedDense> gradients(layers.size());
    Beside weights(given[0].device(), Beside::Lane::weights);
    size_t kept = saved.size();
    Tensor g;
    for (size_t i = layers.size(); i-- > 0;) {
      const TimedDense& l = layers[i];
      TimedDense& found = gradients[i];
      if (l.slope.defined()) {
        g = given_back.made();
        const Tensor& h = saved[--kept];
        if (!parameters) {
          g = kernels::prelu_backward({g, {}}, h, l.slope);
        } else {
          if (l.after.defined()) {
            weights.run([&] { found.after = kernels::sum_rows(g, saved[1], l.after.size(0)); },
                        {g});
          }
          auto all = kernels::bias_prelu_backward({g, {}}, h, l.slope, {}, 1);
          g = all.h;
          found.bias = all.table.squeeze(0);
          found.slope = all.slope;
        }
      } else {
        g = l.silu ? kernels::silu_backward(given_back, saved[--kept]) : given_back.made();
        if (parameters) weights.run([&] { add_up_rows(g, l, saved[1], found); }, {g});
      }
      const Tensor& x = saved[--kept];
      if (parameters) weights.run([&] { found.weight = kernels::product(g.t(), x); }, {g});
      given_back = {g, l.weight};
    }
    const Tensor gx = ctx->needs_input_grad(0) ? given_back.made() : Tensor();
    if (parameters) weights.join();
    std::vector<Tensor*> slopes;
    for (TimedDense& found : gradients) slopes.push_back(&found.slope);
    kernels::add_up(slopes);
    variable_list all = {gx};
    if (parameters) for_parameters(gradients, [&](Tensor& found) { all.push_back(found); });
    all.resize(next);  // as many as forward was given: x, the parameters, and Call
    return all;
  }

  // A gradient that will be differentiated itself: the plain operators compute it anew.
  static variable_list plainly(AutogradContext* ctx, const std::vector<TimedDense>& layers,
                               const variable_list& saved, const Tensor& given, size_t count) {
    const auto y = reference::timed_chain(layers, saved[0], saved[1]);
    variable_list wanted;
    std::vector<size_t> places;
    const auto want = [&](const Tensor& tensor, size_t place) {
      if (!ctx->needs_input_grad(place)) return;
      wanted.push_back(tensor);
      places.push_back(place);
    };
    want(saved[0], 0);
    size_t place = 1;
    for_parameters(layers, [&](const Tensor& tensor) { want(tensor, place++); });
    const auto found = torch::autograd::grad({y}, wanted, {given}, /*retain_graph=*/true,
                                             /*create_graph=*/true);
    variable_list all(count);
    for (size_t i = 0; i < places.size(); ++i) all[places[i]] = found[i];
    return all;
  }
};

}  // namespace

Tensor timed_chain(const std::vector<TimedDense>& layers, const Tensor& x, const Tensor& t) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const TimedDense& l = layers[i];
    const bool last = i + 1 == layers.size();
    TORCH_CHECK(!l.silu || (!last && !l.slope.defined()), "layer ", i, ": no place for a SiLU");
    TORCH_CHECK(!l.before.defined() || l.silu, "layer ", i, ": `before` is for SiLUs");
    TORCH_CHECK(!l.after.defined() || (!last && !l.silu), "layer ", i, ": no place for `after`");
  }
  bool fused = !at::tracer::impl::is_dispatch_enabled();  // a trace sees LibTorch's operators only
  for (size_t i = 0; i + 1 < layers.size(); ++i) {
    fused = fused && (layers[i].slope.defined() || layers[i].silu);
  }
  if (!fused) return reference::timed_chain(layers, x, t);
  std::vector<Tensor> parameters;
  for_parameters(layers, [&](const Tensor& tensor) { parameters.push_back(tensor); });
  return Evaluate::apply(x, at::TensorList(parameters), Call{layers, t});
}

namespace reference {

Tensor timed_chain(const std::vector<TimedDense>& layers, Tensor x, const Tensor& t) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const TimedDense& l = layers[i];
    x = at::linear(x, l.weight, l.bias);
    if (i + 1 == layers.size()) break;
    if (l.before.defined()) x = x + l.before.index_select(0, t);
    if (l.slope.defined()) {
      x = at::prelu(x, l.slope);
    } else {
      x = l.silu ? at::silu(x) : at::softplus(x);
    }
    if (l.after.defined()) x = x + l.after.index_select(0, t);
  }
  return x;
}

}  // namespace reference

}  // namespace ddaebm::ops
