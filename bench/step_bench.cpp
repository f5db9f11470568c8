// One training iteration of the paper's toy model, batch 200: both updates, Adam, averages.
// DDAEBM_BENCH_DEVICE=cuda runs it on a GPU as a CUDA graph.

#include <cstdlib>

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

void toy_step(benchmark::State& state) {
  const auto options = torch::TensorOptions(torch::kFloat).device(device());
  const RunSettings settings(ConfigFile::parse("data.name = '25gaussians'", "bench"));
  const auto source = open_data(settings.data, device());
  const auto method = settings.method_settings->build(source->event(), options);
  Optimizer optimizer(*method, settings.train.optimizer);
  Random random(device());
  const auto progress = torch::zeros({}, options);
  std::vector<torch::Tensor> changed;
  for (const auto& [name, tensor] : optimizer.state()) changed.push_back(tensor);
  RepeatedStep step(
      [&] {
        method->step(
            source->draw(state.range(0), random), progress, random,
            [&](size_t player, const torch::Tensor& loss) { optimizer.update(player, loss); });
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
BENCHMARK(toy_step)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace ddaebm

int main(int argc, char** argv) {
  ddaebm::ops::tune_process(argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
