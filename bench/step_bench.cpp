// One training iteration of the paper's models (both updates, Adam, averages), sampling, scoring.
// DDAEBM_BENCH_DEVICE=cuda runs on a GPU, iterations as a CUDA graph; DDAEBM_BENCH_PRECISION names
// the image networks' precision, bf16 if left out.

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <torch/cuda.h>

#include "ddaebm/data/source.h"
#include "ddaebm/io/file.h"
#include "ddaebm/ops/tuning.h"
#include "ddaebm/tf32.h"
#include "ddaebm/train/graph.h"
#include "ddaebm/train/memory.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

torch::Device device() {
  const char* name = std::getenv("DDAEBM_BENCH_DEVICE");
  return parse_device(name != nullptr ? name : "cpu");
}

torch::TensorOptions floats() { return torch::TensorOptions(torch::kFloat).device(device()); }

void finish() {
  if (device().is_cuda()) torch::cuda::synchronize();
}

// A method with what trains it.
struct Subject {
  Subject(const RunSettings& settings, const std::vector<int64_t>& event)
      : method(settings.method_settings->build(event, floats())),
        optimizer(*method, settings.train.optimizer) {}
  std::unique_ptr<Method> method;
  Optimizer optimizer;
};

// Runs one iteration on data that `draw` makes, again and again.
void steps(benchmark::State& state, Subject& subject,
           const std::function<torch::Tensor(Random&)>& draw) {
  Random random(device());
  const auto progress = torch::zeros({}, floats());
  std::vector<torch::Tensor> changed;
  for (const auto& [name, tensor] : subject.optimizer.state()) changed.push_back(tensor);
  const auto iteration = [&] {
    subject.method->step(draw(random), progress, random,
                         [&](size_t player, const torch::Tensor& loss, bool last) {
                           subject.optimizer.update(player, loss, last);
                         });
    subject.optimizer.average_buffers();
  };
  if (const auto peak = peak_memory(iteration, device())) {
    double bytes = static_cast<double>(*peak);
    for (const auto& tensor : changed) bytes += static_cast<double>(tensor.nbytes());
    state.counters["GB"] = bytes / 1e9;
  }
  RepeatedStep step(iteration, changed, device());
  int64_t i = 0;
  for (auto _ : state) {
    random.restart(Random::kTraining, static_cast<uint64_t>(i));
    subject.optimizer.set_iteration(i++, 100000);
    step();
    finish();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void toy_step(benchmark::State& state) {
  const RunSettings settings(ConfigFile::parse("data.name = '25gaussians'", "bench"));
  const auto source = open_data(settings.data, device());
  Subject subject(settings, source->event());
  steps(state, subject, [&](Random& random) { return source->draw(state.range(0), random); });
}
BENCHMARK(toy_step)->Arg(200)->Arg(1000)->Unit(benchmark::kMillisecond)->UseRealTime();

ConfigFile read_preset(const std::string& name) {
  const std::string path = std::string(DDAEBM_PRESETS) + "/" + name + ".toml";
  return ConfigFile::parse(read_file(path), path);
}

// NICE_t on vectors as long as MNIST's images.
void nice_step(benchmark::State& state) {
  constexpr int64_t kPixels = 784;
  const RunSettings settings(read_preset("mnist-nice"));
  Subject subject(settings, {kPixels});
  const AllowTf32 rounding(settings.train.tf32);
  steps(state, subject, [&](Random& random) {
    return random.normal({state.range(0), kPixels}, floats());
  });
}
BENCHMARK(nice_step)->Arg(128)->Unit(benchmark::kMillisecond)->UseRealTime();

// The networks of a preset, and images of noise in their place.
struct Images {
  explicit Images(const std::string& preset)
      : event(event_of(preset)), subject(read(preset), event) {}
  torch::Tensor noise(int64_t n, Random& random) const {
    return random.normal({n, event[0], event[1], event[2]}, floats()).clamp(-1, 1);
  }

  std::vector<int64_t> event;
  Subject subject;

 private:
  static std::vector<int64_t> event_of(const std::string& preset) {
    const int64_t side = preset == "celeba64-paper" ? 64 : preset == "lsun128-paper" ? 128 : 32;
    return {3, side, side};
  }
  static RunSettings read(const std::string& preset) {
    auto file = read_preset(preset);
    const char* precision = std::getenv("DDAEBM_BENCH_PRECISION");
    file.set(std::string("image_net.precision=") + (precision != nullptr ? precision : "bf16"));
    return RunSettings(file);
  }
};

bool skipped(benchmark::State& state) {
  if (!device().is_cpu()) return false;
  state.SkipWithError("minutes on a CPU: set DDAEBM_BENCH_DEVICE=cuda");
  return true;
}

void image_step(benchmark::State& state, const std::string& preset) {
  if (skipped(state)) return;
  Images images(preset);
  steps(state, images.subject,
        [&](Random& random) { return images.noise(state.range(0), random); });
}

// Four steps of the generator, from noise to images on the device.
void image_sample(benchmark::State& state, const std::string& preset) {
  if (skipped(state)) return;
  Images images(preset);
  images.subject.method->module().eval();
  Random random(device());
  for (auto _ : state) {
    benchmark::DoNotOptimize(images.subject.method->sample(state.range(0), random));
    finish();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// E of images on the device.
void image_score(benchmark::State& state, const std::string& preset) {
  if (skipped(state)) return;
  Images images(preset);
  images.subject.method->module().eval();
  Random random(device());
  const auto x = images.noise(state.range(0), random);
  for (auto _ : state) {
    benchmark::DoNotOptimize(images.subject.method->log_density(x));
    finish();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

#define DDAEBM_IMAGES(what, name, preset) \
  BENCHMARK_CAPTURE(what, name, preset)->Unit(benchmark::kMillisecond)->UseRealTime()
DDAEBM_IMAGES(image_step, cifar10, "cifar10-paper")->Arg(64)->Arg(256);
DDAEBM_IMAGES(image_step, celeba64, "celeba64-paper")->Arg(32);
DDAEBM_IMAGES(image_step, lsun128, "lsun128-paper")->Arg(8);
DDAEBM_IMAGES(image_sample, cifar10, "cifar10-paper")->Arg(500);
DDAEBM_IMAGES(image_score, cifar10, "cifar10-paper")->Arg(500);

}  // namespace
}  // namespace ddaebm

int main(int argc, char** argv) {
  ddaebm::ops::tune_process(argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
