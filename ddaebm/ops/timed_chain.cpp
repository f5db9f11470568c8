#include "ddaebm/ops/timed_chain.h"

#include <algorithm>

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
using Layers = std::vector<TimedDense>;

// Calls f with each tensor of the layers that is there, in order.
template <class Chain, class F>
void for_parameters(Chain& layers, const F& f) {
  for (auto& l : layers) {
    for (auto* tensor : {&l.weight, &l.bias, &l.slope, &l.after, &l.before}) {
      if (tensor->defined()) f(*tensor);
    }
  }
}

struct Call {
  const Layers& layers;
  const Tensor& t;
};

// Gives y, and adds what enters each bend to `entering` where it is given.
Tensor plainly(const Layers& layers, Tensor x, const Tensor& t, variable_list* entering) {
  for (const TimedDense& l : layers) {
    x = at::linear(x, l.weight, l.bias);
    if (l.bend == Bend::linear) continue;
    if (l.before.defined()) x = x + l.before.index_select(0, t);
    if (entering != nullptr) entering->push_back(x);
    if (l.bend == Bend::prelu) {
      x = at::prelu(x, l.slope);
    } else {
      x = l.bend == Bend::silu ? at::silu(x) : at::softplus(x);
    }
    if (l.after.defined()) x = x + l.after.index_select(0, t);
  }
  return x;
}

struct Held : torch::CustomClassHolder {
  explicit Held(const Layers& given) : layers(given) {}
  Layers layers;  // which tensors there are; their values are saved variables
};
void hold(AutogradContext* ctx, const Layers& layers) {
  ctx->saved_data["layers"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(layers));
}
Layers held(AutogradContext* ctx) {
  return static_cast<const Held&>(*ctx->saved_data["layers"].toCapsule()).layers;
}

// What is wanted of some of a function's inputs, as it would be of plain operators.
variable_list plain_gradients(AutogradContext* ctx, const variable_list& outputs,
                              const variable_list& given, const variable_list& inputs) {
  variable_list of, along;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!given[i].defined()) continue;
    of.push_back(outputs[i]);
    along.push_back(given[i]);
  }
  variable_list wanted;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!ctx->needs_input_grad(i)) continue;
    wanted.push_back(inputs[i]);
    places.push_back(i);
  }
  const auto found = torch::autograd::grad(of, wanted, along, /*retain_graph=*/true,
                                           /*create_graph=*/true, /*allow_unused=*/true);
  variable_list all(inputs.size() + 1);  // and nothing for the call
  for (size_t i = 0; i < places.size(); ++i) all[places[i]] = found[i];
  return all;
}

Tensor plain_slope(const Tensor& g, const TimedDense& l, const Tensor& h) {
  if (l.bend == Bend::prelu) return torch::where(h > 0, g, l.slope * g);
  const auto s = h.sigmoid();
  return l.bend == Bend::silu ? g * s * (1 + h * (1 - s)) : g * s;
}

// The gradient in x [N, K] for that of y [N, C], as a function of the latter, the weights and
// slopes, and what enters the bends, so that it can be differentiated once more:
//   d_L = g,  d_l = b_l'(h_l) (d_{l+1} W_{l+1}),  result = d_1 W_1.
// Its derivative along u runs the other way, s_1 = u, s_{l+1} = b_l'(h_l) (s_l W_l^T), and then
//   of g: s_L W_L^T,  of W_l: d_l^T s_l,  of h_l: b_l''(h_l) (d_{l+1} W_{l+1}) (s_l W_l^T).
struct InputGradient : Function<InputGradient> {
  // `parts`: the weights, the slopes that there are, and what enters each bend.
  static variable_list parts(const Layers& layers, const variable_list& h) {
    variable_list all;
    for (const TimedDense& l : layers) all.push_back(l.weight);
    for (const TimedDense& l : layers) {
      if (l.slope.defined()) all.push_back(l.slope);
    }
    all.insert(all.end(), h.begin(), h.end());
    return all;
  }

  static Tensor forward(AutogradContext* ctx, const Tensor& g, at::TensorList parts,
                        const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    const Layers& layers = call.layers;
    const auto h = parts.slice(parts.size() - (layers.size() - 1));
    variable_list gy(layers.size() - 1), d(layers.size());
    Tensor back = g.contiguous();
    for (size_t i = layers.size(); i-- > 0;) {
      const TimedDense& l = layers[i];
      if (i + 1 < layers.size()) {
        gy[i] = back;
        back = l.bend == Bend::prelu ? kernels::prelu_backward({back, {}}, h[i], l.slope)
                                     : kernels::bend_backward({back, {}}, h[i], l.bend);
      }
      d[i] = back;
      back = kernels::product(back, l.weight);
    }
    variable_list saved = {g};
    for (const auto* list : {&gy, &d}) saved.insert(saved.end(), list->begin(), list->end());
    saved.insert(saved.end(), parts.begin(), parts.end());
    ctx->save_for_backward(saved);
    hold(ctx, layers);
    return back;
  }

  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    auto layers = held(ctx);
    const size_t count = layers.size();
    const variable_list gy(saved.begin() + 1, saved.begin() + static_cast<long>(count));
    const variable_list d(saved.begin() + static_cast<long>(count),
                          saved.begin() + static_cast<long>(2 * count));
    variable_list inputs = {saved[0]};
    inputs.insert(inputs.end(), saved.begin() + static_cast<long>(2 * count), saved.end());
    size_t next = 1;
    for (TimedDense& l : layers) l.weight = inputs[next++];
    for (TimedDense& l : layers) {
      if (l.slope.defined()) l.slope = inputs[next++];
    }
    const size_t first_h = next;
    if (torch::GradMode::is_enabled()) {
      auto back = inputs[0];
      for (size_t i = count; i-- > 0;) {
        if (i + 1 < count) back = plain_slope(back, layers[i], inputs[first_h + i]);
        back = back.mm(layers[i].weight);
      }
      return plain_gradients(ctx, {back}, given, inputs);
    }

    const at::AutoDispatchBelowADInplaceOrView plain;
    variable_list all(inputs.size() + 1);
    Beside weights(saved[0].device(), Beside::Lane::weights);
    auto s = given[0].contiguous();
    size_t of_slope = 1 + count;
    for (size_t i = 0; i < count; ++i) {
      const TimedDense& l = layers[i];
      if (ctx->needs_input_grad(1 + i)) {
        weights.run([&] { all[1 + i] = kernels::product(d[i].t(), s); }, {s});
      }
      const kernels::Matrix u = {s, l.weight.t()};
      if (i + 1 == count) {
        if (ctx->needs_input_grad(0)) all[0] = u.made();
      } else if (l.bend == Bend::prelu) {
        const auto& h = inputs[first_h + i];
        s = u.made();
        all[of_slope++] = (gy[i] * s * (h <= 0)).sum().view({1});
        s = kernels::prelu_backward({s, {}}, h, l.slope);
      } else {
        auto both = kernels::bend_backward_twice(u, gy[i], inputs[first_h + i], l.bend);
        s = both.of_gy;
        all[first_h + i] = both.of_h;
      }
    }
    weights.join();
    return all;
  }
};

// Gives y, and what enters each bend: a gradient that is differentiated once more asks for what its
// derivative is in those. Saved are x, t, the parameters, then what enters each product but the
// first, and each bend.
struct Evaluate : Function<Evaluate> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, at::TensorList parameters,
                               const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    variable_list saved = {x, call.t};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    variable_list outputs(1);
    Tensor y = x;
    for (const TimedDense& l : call.layers) {
      if (&l != &call.layers.front()) saved.push_back(y);
      const kernels::Matrix h = {y, l.weight.t()};
      if (l.bend == Bend::linear) {
        y = kernels::add_bias(h, l.bias.unsqueeze(0), {});
        continue;
      }
      auto bent = l.bend == Bend::prelu
                      ? kernels::bias_prelu(h, l.bias.unsqueeze(0), {}, l.slope, l.after, call.t)
                      : kernels::bias_bend(h, l.bias, l.before, call.t, l.bend);
      y = bent.y;
      if (l.bend != Bend::prelu && l.after.defined()) y.add_(l.after.index_select(0, call.t));
      outputs.push_back(bent.h);
    }
    outputs[0] = y;
    saved.insert(saved.end(), outputs.begin() + 1, outputs.end());
    ctx->save_for_backward(saved);
    ctx->set_materialize_grads(false);
    hold(ctx, call.layers);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto saved = ctx->get_saved_variables();
    auto layers = held(ctx);
    variable_list inputs = {saved[0]};
    for_parameters(layers, [&](Tensor& tensor) {
      tensor = saved[1 + inputs.size()];
      inputs.push_back(tensor);
    });
    const auto* later = saved.data() + 1 + inputs.size();  // what enters products 1, 2, ...
    const auto* h = later + layers.size() - 1;             // and what enters the bends
    bool parameters = false;
    for (size_t i = 1; i < inputs.size(); ++i) parameters = parameters || ctx->needs_input_grad(i);
    const auto is_there = [](const Tensor& g) { return g.defined(); };
    if (std::none_of(given.begin(), given.end(), is_there)) {
      return variable_list(inputs.size() + 1);
    }
    if (torch::GradMode::is_enabled()) {
      if (parameters || std::any_of(given.begin() + 1, given.end(), is_there)) {
        variable_list outputs(1);
        outputs[0] = plainly(layers, saved[0], saved[1], &outputs);
        return plain_gradients(ctx, outputs, given, inputs);
      }
      variable_list all(inputs.size() + 1);
      const auto parts = InputGradient::parts(layers, {h, h + layers.size() - 1});
      all[0] = InputGradient::apply(given[0], at::TensorList(parts), Call{layers, saved[1]});
      return all;
    }

    const at::AutoDispatchBelowADInplaceOrView plain;
    kernels::Matrix back;  // the gradient of what a layer gives
    Layers gradients(layers.size());
    Beside weights(saved[0].device(), Beside::Lane::weights);
    for (size_t i = layers.size(); i-- > 0;) {
      const TimedDense& l = layers[i];
      TimedDense& found = gradients[i];
      Tensor g;  // of the product
      if (l.bend == Bend::linear) {
        if (!given[0].defined()) continue;  // what is given is of the bends alone
        g = given[0].contiguous();
      } else if (!back.a.defined()) {
        if (!given[1 + i].defined()) continue;
        g = given[1 + i].contiguous();
      } else {
        if (parameters && l.after.defined()) {
          back = {back.made(), {}};
          weights.run([&] { found.after = kernels::sum_rows(back.a, saved[1], l.after.size(0)); },
                      {back.a});
        }
        if (l.bend != Bend::prelu) {
          g = kernels::bend_backward(back, h[i], l.bend, given[1 + i]);
        } else if (parameters) {
          auto all = kernels::bias_prelu_backward({back.made(), {}}, h[i], l.slope, {}, 1);
          g = all.h;
          found.bias = all.table.squeeze(0);
          found.slope = all.slope;
        } else {
          g = kernels::prelu_backward({back.made(), {}}, h[i], l.slope);
        }
      }
      if (parameters) {
        if (!found.bias.defined()) weights.run([&] { add_up_rows(g, l, saved[1], found); }, {g});
        const Tensor& in = i == 0 ? saved[0] : later[i - 1];
        weights.run([&] { found.weight = kernels::product(g.t(), in); }, {g});
      }
      back = {g, l.weight};
    }
    variable_list all(inputs.size() + 1);
    if (ctx->needs_input_grad(0) && back.a.defined()) all[0] = back.made();
    if (!parameters) return all;
    weights.join();
    std::vector<Tensor*> slopes;
    for (TimedDense& found : gradients) slopes.push_back(&found.slope);
    kernels::add_up(slopes);
    size_t next = 1;
    for (size_t i = 0; i < layers.size(); ++i) {
      const TimedDense& l = layers[i];
      TimedDense& found = gradients[i];
      for (const auto& [there, tensor] : {std::pair{&l.weight, &found.weight},
                                          {&l.bias, &found.bias},
                                          {&l.slope, &found.slope},
                                          {&l.after, &found.after},
                                          {&l.before, &found.before}}) {
        if (there->defined()) all[next++] = *tensor;
      }
    }
    return all;
  }

  // The gradients of what a layer adds to its product, given those of the sum.
  static void add_up_rows(const Tensor& g, const TimedDense& l, const Tensor& t,
                          TimedDense& found) {
    if (l.before.defined()) {
      found.before = kernels::sum_rows(g, t, l.before.size(0));
      found.bias = found.before.sum(0);
    } else {
      found.bias = kernels::sum_rows(g, {}, 1).squeeze(0);
    }
  }
};

}  // namespace

Tensor timed_chain(const std::vector<TimedDense>& layers, const Tensor& x, const Tensor& t) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const TimedDense& l = layers[i];
    TORCH_CHECK((l.bend == Bend::linear) == (i + 1 == layers.size()), "layer ", i, " of ",
                layers.size(), ": the last is linear, and no other");
    TORCH_CHECK((l.bend == Bend::prelu) == l.slope.defined(), "layer ", i,
                ": a slope is for PReLUs, which need one");
    TORCH_CHECK(!l.before.defined() || l.bend == Bend::silu || l.bend == Bend::softplus, "layer ",
                i, ": no place for `before`");
    TORCH_CHECK(!l.after.defined() || l.bend != Bend::linear, "layer ", i,
                ": no place for `after`");
  }
  // A trace sees LibTorch's operators only.
  if (at::tracer::impl::is_dispatch_enabled()) return reference::timed_chain(layers, x, t);
  variable_list parameters;
  for_parameters(layers, [&](const Tensor& tensor) { parameters.push_back(tensor); });
  return Evaluate::apply(x, at::TensorList(parameters), Call{layers, t})[0];
}

Tensor reference::timed_chain(const std::vector<TimedDense>& layers, const Tensor& x,
                              const Tensor& t) {
  return plainly(layers, x, t, nullptr);
}

}  // namespace ddaebm::ops
