#include "ddaebm/train/export.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <sstream>
#include <vector>

#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/serialization/import.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/methods/plain_method.h"

namespace ddaebm {
namespace {

namespace jit = torch::jit;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Shape = std::vector<int64_t>;

// A function of tensors [N, ...] whose N is free.
using Function = std::function<Tensor(const Tensors&)>;

// Two batches by which a trace is told what depends on their size.
constexpr int64_t kSmall = 2, kLarge = 3;
constexpr double kTolerance = 1e-5;

Shape with_batch(int64_t n, const Shape& event) {
  Shape shape = {n};
  shape.insert(shape.end(), event.begin(), event.end());
  return shape;
}

std::shared_ptr<jit::Graph> trace(jit::Module& module, const Function& function,
                                  const Tensors& inputs) {
  jit::Stack stack(inputs.begin(), inputs.end());
  const auto call = [&](const jit::Stack& given) -> jit::Stack {
    Tensors tensors;
    for (const auto& value : given) tensors.push_back(value.toTensor());
    return {function(tensors)};
  };
  auto graph = jit::tracer::trace(
                   std::move(stack), call, [](const Tensor&) { return std::string(); },
                   /*strict=*/true, /*force_outplace=*/false, &module)
                   .first->graph;
  jit::EliminateDeadCode(graph);
  return graph;
}

bool has_gradients(const jit::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const jit::Node* node) {
    return std::string(node->kind().toUnqualString()).find("backward") != std::string::npos;
  });
}

// A trace has the batch's size as a number wherever C++ asked for it. Numbers in which the traces
// of two batches differ are multiples of it, and become so again.
void free_batch(const std::shared_ptr<jit::Graph>& graph, const jit::Graph& other) {
  std::vector<std::pair<jit::Value*, int64_t>> multiples;
  auto theirs = other.nodes().begin();
  for (jit::Node* node : graph->nodes()) {
    TORCH_CHECK(theirs != other.nodes().end() && theirs->kind() == node->kind(),
                "traces of two batches differ");
    const jit::Node* other_node = *theirs++;
    if (node->kind() != jit::prim::Constant) continue;
    const auto ours = jit::toIValue(node->output());
    const auto value = jit::toIValue(other_node->output());
    if (!ours || !ours->isInt() || ours->toInt() == value->toInt()) continue;
    TORCH_CHECK(ours->toInt() * kLarge == value->toInt() * kSmall, "a size that is no multiple");
    multiples.emplace_back(node->output(), ours->toInt() / kSmall);
  }
  const jit::WithInsertPoint start(*graph->nodes().begin());
  jit::Value* size = graph->insert(jit::aten::size, {graph->inputs().at(1), 0});
  for (const auto& [value, factor] : multiples) {
    value->replaceAllUsesWith(factor == 1 ? size : graph->insert(jit::aten::mul, {size, factor}));
  }
  jit::EliminateDeadCode(graph);
}

// Nothing where a tracer cannot follow a function because it takes gradients of its own.
std::shared_ptr<jit::Graph> trace_without_gradients(jit::Module& module, const Function& function,
                                                    const Tensors& inputs) {
  try {
    auto graph = trace(module, function, inputs);
    return has_gradients(*graph) ? nullptr : graph;
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("requires grad") == std::string::npos) throw;
    return nullptr;
  }
}

// Adds a method of inputs [N, ...] of the given shapes. Returns false, and adds nothing, where the
// function takes gradients: their operators have other names in each version of LibTorch.
bool add_method(jit::Module& module, const std::string& name, const Function& function,
                const std::vector<Shape>& events, const torch::TensorOptions& options) {
  const auto traced = [&](int64_t n) {
    Tensors inputs;
    for (const auto& event : events) inputs.push_back(torch::randn(with_batch(n, event), options));
    return trace_without_gradients(module, function, inputs);
  };
  const auto graph = traced(kSmall);
  if (!graph) return false;
  free_batch(graph, *traced(kLarge));
  module.type()->addMethod(module._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*module.type()->name(), name), graph));
  return true;
}

// The parameters and buffers of a method; its tensors themselves, by which a trace knows them.
jit::Module module_of(Method& method) {
  jit::Module module("DdaebmModel");
  const auto name = [](std::string key) {
    std::replace(key.begin(), key.end(), '.', '_');
    return key;
  };
  for (const auto& item : method.module().named_parameters()) {
    module.register_parameter(name(item.key()), item.value(), /*is_buffer=*/false);
  }
  for (const auto& item : method.module().named_buffers()) {
    module.register_buffer(name(item.key()), item.value());
  }
  module.register_attribute("training", c10::BoolType::get(), false);  // for PyTorch's eval()
  return module;
}

double difference(const Tensor& a, const Tensor& b) {
  return ((a - b).abs() / (1 + b.abs())).max().item<double>();
}

}  // namespace

Exported export_torchscript(Model& model, const std::filesystem::path& file) {
  const torch::NoGradGuard no_grad;
  Method& method = model.method();
  method.module().eval();
  const Frozen weights(method.module());  // to use, not to train
  const Units& units = model.units();
  const auto device = units.shift.device();
  const auto floats = torch::TensorOptions(torch::kFloat).device(device);
  auto module = module_of(method);

  if (!model.has("energy")) fail("this run was imported without its energy; nothing to export");
  const Function score = [&](const Tensors& in) {
    const auto x = units.to_model(in[0].to(torch::kDouble)).to(torch::kFloat);
    return method.log_density(x).to(torch::kDouble) + units.log_density_gain();
  };
  if (!add_method(module, "score", score, {model.event()}, floats)) {
    fail(
        "a score of this method takes gradients, which TorchScript files cannot hold; use `ddaebm "
        "score`, `ddaebm serve` or the Python module");
  }
  module.define("def forward(self, x: Tensor) -> Tensor:\n  return self.score(x)\n");

  Random random(device);
  const Function generate = [&](const Tensors& noise) {
    size_t next = 0;
    random.supply_normal = [&](at::IntArrayRef) { return noise.at(next++); };
    return units.to_data(method.sample(noise[0].size(0), random)).to(torch::kFloat);
  };
  std::vector<Shape> noise;  // what the sampler asks for, in order
  Exported made;
  if (model.has("generator")) {
    random.supply_normal = [&](at::IntArrayRef shape) {
      noise.emplace_back(shape.begin() + 1, shape.end());
      return torch::randn(shape, floats);
    };
    method.sample(kSmall, random);
    made.sample = add_method(module, "generate", generate, noise, floats);
  }
  if (made.sample) {
    std::string arguments;
    for (const auto& event : noise) {
      arguments += fmt::format("torch.randn([n, {}], device=\"{}\"), ", fmt::join(event, ", "),
                               device.str());
    }
    module.define("def sample(self, n: int) -> Tensor:\n  return self.generate(" + arguments +
                  ")\n");
  }
  std::ostringstream bytes;
  module.save(bytes);
  write_file(file, bytes.str());

  auto read = jit::load(file.string(), device);
  const auto inputs = [&](const std::vector<Shape>& events) {
    Tensors all;
    for (const auto& event : events) all.push_back(torch::randn(with_batch(7, event), floats));
    return all;
  };
  const auto call = [&](const char* name, const Tensors& given) {
    return read.get_method(name)(jit::Stack(given.begin(), given.end())).toTensor();
  };
  const auto x = units.to_data(inputs({model.event()})[0]);
  made.score_error = difference(call("score", {x}).cpu(), model.log_density(x));
  if (made.sample) {
    const auto given = inputs(noise);
    made.sample_error = difference(call("generate", given), generate(given));
  }
  if (!(made.score_error <= kTolerance && made.sample_error <= kTolerance)) {
    fail("{}: scores differ from the model's by {:.1e}, samples by {:.1e}; please report this",
         file.string(), made.score_error, made.sample_error);
  }
  return made;
}

}  // namespace ddaebm
