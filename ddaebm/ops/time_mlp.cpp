#include "ddaebm/ops/time_mlp.h"

#include <algorithm>
#include <span>

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

// A layer within a pass: its parameters, and what the passes keep for their derivatives.
struct Layer {
  Tensor weight;       // [C, K]
  Tensor table, rows;  // the bias: row rows[i] of [B, C] for input row i; rows undefined: B = 1
  Tensor slope;
  BatchNorm norm;           // before the PReLU
  bool norm_after = false;  // behind it

  Tensor x;           // its input, [N, K]
  Tensor h;           // what enters the PReLU, [N, C]; not kept where a norm comes before
  Tensor normalised;  // under a norm, not yet scaled, [N, C]
  Tensor inverse;     // one over the deviation under a norm, [C]
  Tensor dy, dh;      // derivatives of the network's one output in y = prelu(h) and in h, [N, C]
};

struct Gradients {
  Tensor weight, table, slope, scale, shift;
};

// The layers in the order of evaluation. The trunk's first layer is cut by columns: those for the
// time branch end its chain, which so computes the bias table of those for x.
struct Passes : torch::CustomClassHolder {
  std::vector<Layer> time;  // embeddings [T, E] -> the table, [T, C]
  std::vector<Layer> main;  // x [N, D] -> [N, out]
  size_t x_branch = 0;      // how many of main's are the x branch

  std::span<Layer> x_layers() { return std::span(main).first(x_branch); }
  std::span<Layer> trunk_layers() { return std::span(main).subspan(x_branch); }
  std::span<const Layer> x_layers() const { return std::span(main).first(x_branch); }
  std::span<const Layer> trunk_layers() const { return std::span(main).subspan(x_branch); }
};

struct Call {
  const TimeMlpParts& net;
  const Tensor& t;
};

// The gradients in the order of `parameters`.
variable_list in_order(const Passes& passes, const std::vector<Gradients>& time,
                       const std::vector<Gradients>& main) {
  variable_list all;
  const auto put = [&](const Gradients& g, const Tensor& weight, const Tensor& bias) {
    all.insert(all.end(), {weight, bias.squeeze(0)});
    for (const auto* tensor : {&g.slope, &g.scale, &g.shift}) {
      if (tensor->defined()) all.push_back(*tensor);
    }
  };
  const auto put_plain = [&](const Gradients& g) { put(g, g.weight, g.table); };
  const auto joined = static_cast<std::ptrdiff_t>(passes.x_branch);
  std::for_each(main.begin(), main.begin() + joined, put_plain);
  std::for_each(time.begin(), time.end() - 1, put_plain);
  const Gradients& first = main[passes.x_branch];
  put(first, torch::cat({first.weight, time.back().weight}, 1), time.back().table);
  std::for_each(main.begin() + joined + 1, main.end(), put_plain);
  return all;
}

Layer layer(const Dense& dense, bool norm_after) {
  Layer made;
  made.weight = dense.weight;
  made.table = dense.bias.unsqueeze(0);
  made.slope = dense.slope;
  made.norm = dense.norm;
  made.norm_after = norm_after && dense.norm.scale.defined();
  return made;
}

// Normalises h, and returns what follows.
Tensor norm(Layer& l, const kernels::Matrix& h, const Tensor& table, const Tensor& slope) {
  auto made = kernels::bias_norm_prelu(h, table, l.rows,
                                       {l.norm.scale, l.norm.shift, l.norm.running_mean,
                                        l.norm.running_variance, l.norm.momentum, l.norm.eps},
                                       slope);
  l.normalised = made.h;
  l.inverse = made.inverse;
  return made.y;
}

Tensor forward_pass(std::span<Layer> chain, Tensor x) {
  for (Layer& l : chain) {
    l.x = x;
    const kernels::Matrix h = {x, l.weight.t()};
    if (l.norm.scale.defined() && !l.norm_after) {
      x = norm(l, h, l.table, l.slope);
    } else if (l.slope.defined()) {
      auto bent = kernels::bias_prelu(h, l.table, l.rows, l.slope);
      l.h = bent.h;
      x = l.norm_after ? norm(l, {bent.y, {}}, {}, {}) : bent.y;
    } else {
      x = kernels::add_bias(h, l.table, l.rows);
    }
  }
  return x;
}

// A call's layers, evaluated.
struct Evaluated {
  c10::intrusive_ptr<Passes> passes;
  Tensor y;
};
Evaluated evaluate(const Call& call, const Tensor& x) {
  const TimeMlpParts& net = call.net;
  auto passes = c10::make_intrusive<Passes>();
  const auto put = [&](std::vector<Layer>& chain, const std::vector<Dense>& part) {
    for (const Dense& dense : part) chain.push_back(layer(dense, net.norm_after_prelu));
  };
  put(passes->main, net.x_branch);
  put(passes->time, net.t_branch);
  passes->x_branch = passes->main.size();
  put(passes->main, net.trunk);

  Layer& first = passes->main[passes->x_branch];
  const int64_t of_x = net.x_branch.back().weight.size(0);
  Layer of_time;
  of_time.weight = first.weight.slice(1, of_x);
  of_time.table = first.table;
  passes->time.push_back(of_time);
  first.weight = first.weight.slice(1, 0, of_x);
  first.rows = call.t;

  Beside times(x.device(), Beside::Lane::times);
  times.run([&] { first.table = forward_pass(passes->time, net.embeddings); });
  const auto branch = forward_pass(passes->x_layers(), x);
  times.join();
  auto y = forward_pass(passes->trunk_layers(), branch);
  return {std::move(passes), y};
}

// The gradients of a chain's parameters where they are wanted, given that of its output; returns
// that of its input. Those of weights are there when `weights` has joined.
kernels::Matrix backward_pass(std::span<const Layer> chain, kernels::Matrix g,
                              std::span<Gradients> gradients, Beside& weights) {
  const bool wanted = !gradients.empty();
  for (size_t i = chain.size(); i-- > 0;) {
    const Layer& l = chain[i];
    Gradients found;
    const bool norm_first = l.norm.scale.defined() && !l.norm_after;
    if (l.norm.scale.defined()) {
      auto all = kernels::norm_prelu_backward(
          g, l.normalised, l.inverse, l.norm.scale, l.norm.shift, norm_first ? l.slope : Tensor(),
          norm_first ? l.rows : Tensor(), norm_first ? l.table.size(0) : 1);
      g = {all.h, {}};
      found = {{}, all.table, all.slope, all.scale, all.shift};
    }
    if (!norm_first && wanted) {
      auto all = kernels::bias_prelu_backward(g, l.h, l.slope, l.rows, l.table.size(0));
      g = {all.h, {}};
      found.table = all.table;
      found.slope = all.slope;
    } else if (!norm_first) {
      g = {l.slope.defined() ? kernels::prelu_backward(g, l.h, l.slope) : g.made(), {}};
    }
    if (wanted) {
      weights.run([&] { found.weight = kernels::product(g.a.t(), l.x); }, {g.a});
      gradients[i] = found;
    }
    g.b = l.weight;
  }
  return g;
}

// Of the time branch, from those of the bias table that it made.
std::vector<Gradients> time_gradients(const Passes& passes, const Tensor& of_table) {
  std::vector<Gradients> gradients(passes.time.size());
  Beside weights(of_table.device(), Beside::Lane::weights);
  backward_pass(passes.time, {of_table, {}}, gradients, weights);
  weights.join();
  return gradients;
}

variable_list all_gradients(const Passes& passes, std::vector<Gradients>& time,
                            std::vector<Gradients>& main) {
  std::vector<Tensor*> slopes;
  for (Gradients& g : main) slopes.push_back(&g.slope);
  for (Gradients& g : time) slopes.push_back(&g.slope);
  kernels::add_up(slopes);
  return in_order(passes, time, main);
}

bool any_parameter_wanted(AutogradContext* ctx, size_t count) {
  for (size_t i = 1; i <= count; ++i) {
    if (ctx->needs_input_grad(i)) return true;
  }
  return false;
}

const Passes& kept(AutogradContext* ctx) {
  TORCH_CHECK(!torch::GradMode::is_enabled(),
              "time_mlp cannot be differentiated this often; see ops::reference");
  return static_cast<const Passes&>(*ctx->saved_data["passes"].toCapsule());
}

// The gradients as autograd wants them: of x, of the parameters, and nothing for Call.
variable_list answer(const Tensor& x, const variable_list& of_parameters, size_t count) {
  variable_list all = {x};
  all.insert(all.end(), of_parameters.begin(), of_parameters.end());
  all.resize(count + 2);
  return all;
}

struct Evaluate : Function<Evaluate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, at::TensorList parameters,
                        const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    auto [passes, y] = evaluate(call, x);
    ctx->save_for_backward({x});
    ctx->saved_data["parameters"] = static_cast<int64_t>(parameters.size());
    ctx->saved_data["passes"] = c10::IValue::make_capsule(std::move(passes));
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const Passes& passes = kept(ctx);
    const at::AutoDispatchBelowADInplaceOrView plain;
    // Not used, but this is what fails when a graph that was not retained is differentiated again.
    ctx->get_saved_variables();
    const auto count = static_cast<size_t>(ctx->saved_data["parameters"].toInt());
    const bool x_wanted = ctx->needs_input_grad(0);
    const kernels::Matrix g = {given[0].contiguous(), {}};
    Beside weights(g.a.device(), Beside::Lane::weights);
    if (!any_parameter_wanted(ctx, count)) {
      return answer(backward_pass(passes.main, g, {}, weights).made(), {}, count);
    }
    std::vector<Gradients> main(passes.main.size());
    const auto of_x = std::span(main).first(passes.x_branch);
    const auto of_trunk = std::span(main).subspan(passes.x_branch);
    const auto of_branch = backward_pass(passes.trunk_layers(), g, of_trunk, weights);
    std::vector<Gradients> time;
    Beside times(g.a.device(), Beside::Lane::times);
    times.run([&] { time = time_gradients(passes, of_trunk.front().table); });
    const auto g_input = backward_pass(passes.x_layers(), of_branch, of_x, weights);
    const auto gx = x_wanted ? g_input.made() : Tensor();
    weights.join();
    times.join();
    return answer(gx, all_gradients(passes, time, main), count);
  }
};

// With E the output, the chain is piecewise linear: E = h_L, h_l = W_l y_{l-1} + b_l,
// y_l = p_l h_l, where p_l is 1 or the slope by the sign of h_l. So the gradient of
//   F = sum_i gE_i E_i + gg_i . dE_i/dx,
// whose second term is the derivative of E along gg, comes from one pass that is forward and
// tangent in one, s_l = gE y_l + (derivative of y_l along gg):
//   s_0 = gE x + gg,  u_l = W_l s_{l-1} + gE b_l,  s_l = p_l u_l,
//   dF/dW_l = (dE/dh_l)^T s_{l-1},  dF/db_l = sum gE dE/dh_l,
//   dF/dslope_l = sum of dE/dy_l u_l where h_l <= 0,  dF/dx = gE dE/dx.
struct EvaluateWithGradient : Function<EvaluateWithGradient> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, at::TensorList parameters,
                               const Call& call) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    auto [passes, value] = evaluate(call, x);
    auto g = torch::ones_like(value);
    for (size_t i = passes->main.size(); i-- > 0;) {
      Layer& l = passes->main[i];
      l.dy = g;
      l.dh = l.slope.defined() ? kernels::prelu_backward({g, {}}, l.h, l.slope) : g;
      g = kernels::product(l.dh, l.weight);
    }
    ctx->save_for_backward({x, g});
    ctx->saved_data["parameters"] = static_cast<int64_t>(parameters.size());
    ctx->saved_data["passes"] = c10::IValue::make_capsule(std::move(passes));
    return {value.squeeze(1), g};
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const Passes& passes = kept(ctx);
    const at::AutoDispatchBelowADInplaceOrView plain;
    const auto saved = ctx->get_saved_variables();
    const auto count = static_cast<size_t>(ctx->saved_data["parameters"].toInt());
    const auto ge = given[0].contiguous();
    const auto gx = ctx->needs_input_grad(0) ? ge.unsqueeze(1) * saved[1] : Tensor();
    if (!any_parameter_wanted(ctx, count)) return answer(gx, {}, count);
    std::vector<Gradients> main(passes.main.size());
    std::vector<Gradients> time;
    Beside weights(ge.device(), Beside::Lane::weights);
    Beside times(ge.device(), Beside::Lane::times);
    auto s = torch::addcmul(given[1], ge.unsqueeze(1), saved[0]);
    for (size_t i = 0; i < main.size(); ++i) {
      const Layer& l = passes.main[i];
      Gradients& found = main[i];
      weights.run([&] { found.weight = kernels::product(l.dh.t(), s); }, {s});
      auto all =
          kernels::bias_prelu_tangent({s, l.weight.t()}, ge, l.table, l.rows, l.h, l.slope, l.dy);
      s = all.h;
      found.table = all.table;
      found.slope = all.slope;
      if (i == passes.x_branch) {
        times.run([&] { time = time_gradients(passes, found.table); });
      }
    }
    weights.join();
    times.join();
    return answer(gx, all_gradients(passes, time, main), count);
  }
};

bool has_norm(const TimeMlpParts& net) {
  return (!net.x_branch.empty() && net.x_branch.front().norm.scale.defined()) ||
         net.trunk.front().norm.scale.defined();
}

// A trace sees LibTorch's operators, not our kernels.
bool traced() { return at::tracer::impl::is_dispatch_enabled(); }

bool is_spread(const BatchNorm& norm) { return norm.spread && norm.spread->parts > 1; }

// The sum over all parts of a batch. What each part makes of it counts: so its derivative is the
// sum of theirs.
struct SumOfParts : Function<SumOfParts> {
  static Tensor forward(AutogradContext* ctx, const Tensor& part,
                        const std::shared_ptr<const SpreadBatch>& spread) {
    ctx->saved_data["spread"] = c10::IValue::make_capsule(c10::make_intrusive<Held>(spread));
    auto total = part.detach().clone();
    spread->sum(total);
    return total;
  }
  static variable_list backward(AutogradContext* ctx, variable_list given) {
    const auto held = ctx->saved_data["spread"].toCapsule();
    return {SumOfParts::apply(given[0], static_cast<const Held&>(*held).spread), Tensor()};
  }
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<const SpreadBatch> s) : spread(std::move(s)) {}
    std::shared_ptr<const SpreadBatch> spread;
  };
};

// Batch norm in training with the statistics of all parts.
Tensor spread_norm(const BatchNorm& norm, const Tensor& h) {
  const auto n = static_cast<double>(h.size(0) * norm.spread->parts);
  const auto centred = h - SumOfParts::apply(h.sum(0), norm.spread) / n;
  const auto variance = SumOfParts::apply(centred.square().sum(0), norm.spread) / n;
  {
    const torch::NoGradGuard no_grad;
    const auto mean = (h - centred).mean(0);
    Tensor(norm.running_mean).lerp_(mean, norm.momentum);
    Tensor(norm.running_variance).lerp_(variance * (n / (n - 1)), norm.momentum);
  }
  return centred * (variance + norm.eps).rsqrt() * norm.scale + norm.shift;
}

}  // namespace

std::vector<Tensor> parameters(const TimeMlpParts& net) {
  std::vector<Tensor> all;
  for (const auto* part : {&net.x_branch, &net.t_branch, &net.trunk}) {
    for (const Dense& dense : *part) {
      all.insert(all.end(), {dense.weight, dense.bias});
      if (dense.slope.defined()) all.push_back(dense.slope);
      if (dense.norm.scale.defined()) all.insert(all.end(), {dense.norm.scale, dense.norm.shift});
    }
  }
  return all;
}

Tensor time_mlp(const TimeMlpParts& net, const Tensor& x, const Tensor& t, bool training) {
  const bool spread = is_spread(net.trunk.front().norm) || is_spread(net.x_branch.front().norm);
  if (traced() || (has_norm(net) && (!training || spread))) {
    return reference::time_mlp(net, x, t, training);
  }
  return Evaluate::apply(x, at::TensorList(parameters(net)), Call{net, t});
}

ValueAndGradient time_mlp_and_gradient(const TimeMlpParts& net, const Tensor& x, const Tensor& t) {
  if (traced()) return reference::time_mlp_and_gradient(net, x, t);
  const auto out = EvaluateWithGradient::apply(x, at::TensorList(parameters(net)), Call{net, t});
  return {out[0], out[1]};
}

namespace reference {

Tensor dense_chain(const std::vector<Dense>& layers, Tensor x, bool norm_after_prelu,
                   bool training) {
  for (const Dense& l : layers) {
    const auto norm = [&](const Tensor& h) {
      if (training && is_spread(l.norm)) return spread_norm(l.norm, h);
      return at::batch_norm(h, l.norm.scale, l.norm.shift, l.norm.running_mean,
                            l.norm.running_variance, training, l.norm.momentum, l.norm.eps,
                            /*cudnn_enabled=*/false);
    };
    x = at::linear(x, l.weight, l.bias);
    if (l.norm.scale.defined() && !norm_after_prelu) x = norm(x);
    if (l.slope.defined()) x = at::prelu(x, l.slope);
    if (l.norm.scale.defined() && norm_after_prelu) x = norm(x);
  }
  return x;
}

Tensor time_mlp(const TimeMlpParts& net, const Tensor& x, const Tensor& t, bool training) {
  const auto run = [&](const std::vector<Dense>& layers, const Tensor& in) {
    return dense_chain(layers, in, net.norm_after_prelu, training);
  };
  const auto of_time = run(net.t_branch, net.embeddings).index_select(0, t);
  return run(net.trunk, torch::cat({run(net.x_branch, x), of_time}, 1));
}

ValueAndGradient time_mlp_and_gradient(const TimeMlpParts& net, const Tensor& x, const Tensor& t) {
  const auto input = x.requires_grad() ? x : x.detach().requires_grad_();
  const auto value = reference::time_mlp(net, input, t, /*training=*/true).squeeze(1);
  return {value, torch::autograd::grad({value.sum()}, {input}, {}, /*retain_graph=*/true,
                                       /*create_graph=*/true)[0]};
}

}  // namespace reference
}  // namespace ddaebm::ops
