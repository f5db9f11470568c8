#include "ddaebm/train/model.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/nets/networks.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

// How many data go through the networks at once.
int64_t chunk_size(const std::vector<int64_t>& event) {
  int64_t numbers = 1;
  for (const int64_t size : event) numbers *= size;
  return std::clamp<int64_t>(1500000 / numbers, 16, 20000);
}

// Evaluation mode for a while: batch norm uses its running statistics, dropout is off.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module) : module_(module), was_(module.is_training()) {
    module_.eval();
  }
  ~Evaluating() { module_.train(was_); }
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_;
};

}  // namespace

torch::Device parse_device(const std::string& name) {
  if (name == "cpu") return torch::kCPU;
  int64_t index = 0;
  if (name.rfind("cuda:", 0) == 0 && name.size() > 5 && name.size() < 9 &&
      std::all_of(name.begin() + 5, name.end(), ::isdigit)) {
    index = std::stoll(name.substr(5));
  } else if (name != "cuda") {
    fail("--device {}: expected cpu, cuda or cuda:N", name);
  }
  const auto there = static_cast<int64_t>(torch::cuda::device_count());
  if (index >= there) {
    fail("--device {}: {} here; use --device cpu", name,
         there == 0 ? std::string("no CUDA device is")
                    : fmt::format("only {} CUDA device{}", there, there == 1 ? " is" : "s are"));
  }
  return {torch::kCUDA, static_cast<c10::DeviceIndex>(index)};
}

Model::Model(Method& method, const Units& units, torch::TensorOptions options)
    : method_(&method),
      units_(units.to(options.dtype(torch::kDouble))),
      options_(options),
      event_(units.shift.sizes().vec()),
      chunk_(chunk_size(event_)) {}

Model Model::load(const std::filesystem::path& run, torch::Device device) {
  const bool one = std::filesystem::is_regular_file(run);
  const RunFolder folder{one ? std::filesystem::absolute(run).parent_path() : run};
  if (!std::filesystem::exists(folder.config())) {
    fail("{}: not a run folder (it has no config.toml)", folder.path.string());
  }
  RunSettings settings(ConfigFile::parse(read_file(folder.config()), folder.config().string()));
  const auto checkpoint =
      one ? Checkpoint(run) : Checkpoint::newest(folder, [](const auto&, const std::string& why) {
        ReadHooks::warn_on_stderr(why + "; an older one is used");
      });
  if (!checkpoint) {
    fail("{}: no checkpoint yet; train it first, or wait for the first one", folder.path.string());
  }
  // The data's dimension and units come with the checkpoint: the data itself is not needed.
  Units units = checkpoint->units();
  const auto options = torch::TensorOptions(torch::kFloat).device(device);
  std::shared_ptr<Method> method =
      settings.method_settings->build(units.shift.sizes().vec(), options);
  std::vector<NamedTensor> weights;
  for (const auto& item : method->module().named_parameters()) {
    weights.push_back({"average." + item.key(), item.value()});
  }
  for (const auto& item : method->module().named_buffers()) {
    weights.push_back({"average." + item.key(), item.value()});
  }
  checkpoint->copy_to(settings.method, weights, units);
  Model model(*method, units, options);
  model.owned_ = std::move(method);
  model.owned_->module().eval();
  model.missing_ = checkpoint->facts().missing;
  return model;
}

bool Model::has(const std::string& network) const {
  return std::find(missing_.begin(), missing_.end(), network) == missing_.end();
}

void Model::need(const char* network, const char* use) const {
  if (has(network)) return;
  fail("this run was imported without its {}, which {} needs; import the checkpoint that has it",
       network, use);
}

void Model::check_shape(const torch::Tensor& x) const {
  std::vector<int64_t> wanted = {x.dim() > 0 ? x.size(0) : 0};
  wanted.insert(wanted.end(), event_.begin(), event_.end());
  if (x.sizes() != wanted) {
    fail("data of shape [{}], the model wants [N, {}]", fmt::join(x.sizes(), ", "),
         fmt::join(event_, ", "));
  }
}

torch::Tensor Model::to_model(const torch::Tensor& rows) const {
  return units_.to_model(rows.to(options_.dtype(torch::kDouble))).to(options_);
}

torch::Tensor Model::log_density(const torch::Tensor& x) {
  return scored(x, [&](const torch::Tensor& part) { return method_->log_density(part); });
}

torch::Tensor Model::log_density_at(const torch::Tensor& x, int64_t t) {
  TORCH_CHECK(0 <= t && t < times(), "log_density_at: t = ", t, " of ", times());
  return scored(x, [&](const torch::Tensor& part) { return method_->log_density_at(part, t); });
}

torch::Tensor Model::scored(const torch::Tensor& x, const Score& score) {
  need("energy", "scoring");
  const torch::NoGradGuard no_grad;
  const Evaluating guard(method_->module());
  check_shape(x);
  const double gain = units_.log_density_gain().item<double>();
  auto out = torch::empty({x.size(0)}, torch::kDouble);
  for (int64_t from = 0; from < x.size(0); from += chunk_) {
    const auto part = x.slice(0, from, std::min(from + chunk_, x.size(0)));
    out.slice(0, from, from + part.size(0)).copy_(score(to_model(part)).to(torch::kDouble) + gain);
    if (progress) progress(from + part.size(0), x.size(0));
  }
  return out;
}

torch::Tensor Model::features(const torch::Tensor& x) {
  need("energy", "features");
  const torch::NoGradGuard no_grad;
  const Evaluating guard(method_->module());
  check_shape(x);
  std::vector<torch::Tensor> parts;
  for (const auto& part : x.split(chunk_)) {
    const auto found = method_->features(to_model(part));
    if (!found.defined()) return {};
    parts.push_back(found.to(torch::kCPU, torch::kDouble));
  }
  return torch::cat(parts);
}

torch::Tensor Model::sample(int64_t n, uint64_t seed) {
  need("generator", "sampling");
  const torch::NoGradGuard no_grad;
  const Evaluating guard(method_->module());
  Random random(options_.device(), seed);
  std::vector<torch::Tensor> parts;
  for (int64_t from = 0; from < n; from += chunk_) {
    random.restart(Random::kSampling, static_cast<uint64_t>(from));
    parts.push_back(
        units_.to_data(method_->sample(std::min(chunk_, n - from), random)).to(torch::kCPU));
    if (progress) progress(std::min(from + chunk_, n), n);
  }
  return torch::cat(parts).to(torch::kFloat);
}

std::vector<torch::Tensor> Model::sample_path(int64_t n, uint64_t seed) {
  need("generator", "sampling");
  const torch::NoGradGuard no_grad;
  const Evaluating guard(method_->module());
  Random random(options_.device(), seed);
  random.restart(Random::kSampling, 0);
  auto path = method_->sample_path(n, random);
  if (path.empty()) return {sample(n, seed)};
  for (auto& x : path) x = units_.to_data(x).to(torch::kCPU, torch::kFloat);
  return path;
}

torch::Tensor Model::exact_sample(int64_t n, uint64_t seed) {
  const auto children = method_->module().named_children();
  const auto* energy = children.find("energy");
  auto* flow = energy != nullptr ? dynamic_cast<NiceEnergy*>(energy->get()) : nullptr;
  if (flow == nullptr) return {};
  const torch::NoGradGuard no_grad;
  Random random(options_.device(), seed);
  random.restart(Random::kSampling, 0);
  const auto y = random.normal({n, event_.at(0)}, options_);
  const auto t = torch::zeros({n}, options_.dtype(torch::kLong));
  const Evaluating guard(method_->module());
  const auto x = flow->flow->inverse(y, t);
  // A method may add to its flow, such as a reference measure.
  if (!torch::allclose(method_->log_density(x), flow->forward(x, t))) return {};
  return units_.to_data(x).to(torch::kCPU, torch::kFloat);
}

torch::Tensor Model::changed(const torch::Tensor& x, uint64_t seed, const Change& change) {
  const torch::NoGradGuard no_grad;
  const Evaluating guard(method_->module());
  check_shape(x);
  Random random(options_.device(), seed);
  auto out = torch::empty(x.sizes(), x.options());
  for (int64_t from = 0; from < x.size(0); from += chunk_) {
    random.restart(Random::kEvaluation, static_cast<uint64_t>(from));
    const auto part = to_model(x.slice(0, from, std::min(from + chunk_, x.size(0))));
    const auto made = change(part, random);
    if (!made.defined()) return {};
    // What is left as it was stays so to the last bit.
    auto to = out.slice(0, from, from + part.size(0));
    to.copy_(torch::equal(made, part) ? x.slice(0, from, from + part.size(0))
                                      : units_.to_data(made));
  }
  return out;
}

torch::Tensor Model::diffused(const torch::Tensor& x, int64_t t, uint64_t seed) {
  return changed(x, seed, [&](const torch::Tensor& part, Random& random) {
    return method_->diffused(part, t, random);
  });
}

torch::Tensor Model::regenerated(const torch::Tensor& x, uint64_t seed) {
  need("generator", "making data again");
  return changed(x, seed, [&](const torch::Tensor& part, Random& random) {
    return method_->regenerated(part, random);
  });
}

ops::ValueAndGradient Model::log_density_and_gradient(const torch::Tensor& x, int64_t t) {
  need("energy", "scoring");
  const Evaluating guard(method_->module());
  check_shape(x);
  const torch::TensorOptions doubles(torch::kDouble);
  const double gain = units_.log_density_gain().item<double>();
  ops::ValueAndGradient out{torch::empty({x.size(0)}, doubles), torch::empty(x.sizes(), doubles)};
  // What a pass leaves for the way back takes far more memory than the pass itself.
  const int64_t chunk = std::max<int64_t>(1, chunk_ / 8);
  for (int64_t from = 0; from < x.size(0); from += chunk) {
    const int64_t to = std::min(from + chunk, x.size(0));
    const auto part = to_model(x.slice(0, from, to)).detach().requires_grad_();
    const torch::AutoGradMode with_gradients(true);
    const auto value = method_->log_density_at(part, t);
    if (!value.requires_grad()) {
      fail("this method's log-density has no gradient, which annealing needs");
    }
    const auto gradient = torch::autograd::grad({value.sum()}, {part})[0];
    const torch::NoGradGuard no_grad;
    out.value.slice(0, from, to).copy_(value.detach().to(torch::kDouble) + gain);
    out.gradient.slice(0, from, to).copy_(gradient.to(torch::kDouble) / units_.scale);
  }
  return out;
}

}  // namespace ddaebm
