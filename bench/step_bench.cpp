// One training iteration of the paper's toy and CIFAR-10 models: both updates, Adam, averages.
// DDAEBM_BENCH_DEVICE=cuda runs it on a GPU as a CUDA graph.

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <torch/cuda.h>

#include "ddaebm/data/source.h"
#include "ddaebm/ops/tuning.h"
#include "ddaebm/train/graph.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

torch::Device device() {
  const char* name = std::getenv("DDAEBM_BENCH_DEVICE");
  return parse_device(name != nullptr ? name : "cpu");
}

// Runs one iteration of a method on data that `draw` makes, again and again.
void steps(benchmark::State& state, const RunSettings& settings, const std::vector<int64_t>& event,
           const std::function<torch::Tensor(Random&)>& draw) {
  const auto options = torch::TensorOptions(torch::kFloat).device(device());
  const auto method = settings.method_settings->build(event, options);
  Optimizer optimizer(*method, settings.train.optimizer);
  Random random(device());
  const auto progress = torch::zeros({}, options);
  std::vector<torch::Tensor> changed;
  for (const auto& [name, tensor] : optimizer.state()) changed.push_back(tensor);
  RepeatedStep step(
      [&] {
        method->step(draw(random), progress, random,
                     [&](size_t player, const torch::Tensor& loss, bool last) {
                       optimizer.update(player, loss, last);
                     });
        optimizer.average_buffers();
      },
      changed, device());
  int64_t iteration = 0;
  for (auto _ : state) {
    random.restart(Random::kTraining, static_cast<uint64_t>(iteration));
    optimizer.set_iteration(iteration++, 100000);
    step();
    if (device().is_cuda()) torch::cuda::synchronize();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void toy_step(benchmark::State& state) {
  const RunSettings settings(ConfigFile::parse("data.name = '25gaussians'", "bench"));
  const auto source = open_data(settings.data, device());
  steps(state, settings, source->event(),
        [&](Random& random) { return source->draw(state.range(0), random); });
}
BENCHMARK(toy_step)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond)->UseRealTime();

// The CIFAR-10 networks, in the precision that DDAEBM_BENCH_PRECISION names.
void cifar10_step(benchmark::State& state) {
  if (device().is_cpu()) {
    state.SkipWithError("minutes a step on a CPU: set DDAEBM_BENCH_DEVICE=cuda");
    return;
  }
  const char* precision = std::getenv("DDAEBM_BENCH_PRECISION");
  const std::string text = std::string("image_net.precision = '") +
                           (precision != nullptr ? precision : "bf16") +
                           "'\ngame.reconstruction = 'mse'\n";
  const RunSettings settings(ConfigFile::parse(text, "bench"));
  const std::vector<int64_t> shape = {state.range(0), 3, 32, 32};
  steps(state, settings, {3, 32, 32}, [&](Random& random) {
    return random.normal(shape, torch::TensorOptions(torch::kFloat)).clamp(-1, 1);
  });
}
BENCHMARK(cifar10_step)->Arg(64)->Arg(256)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace ddaebm

int main(int argc, char** argv) {
  ddaebm::ops::tune_process(argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
