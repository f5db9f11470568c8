// Our side of `./dev bench`: one training iteration of a preset (both updates, Adam, averages),
// sampling, scoring, or the features behind FID, timed as bench/measure.py times the peers. Data
// are noise of the right shape. Prints a line of JSON.

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>

#include <ATen/Parallel.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include "ddaebm/data/images.h"
#include "ddaebm/io/file.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/ops/tuning.h"
#include "ddaebm/tf32.h"
#include "ddaebm/train/graph.h"
#include "ddaebm/train/memory.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/settings.h"

namespace ddaebm {
namespace {

struct Arguments {
  std::string what = "step";
  std::string preset = "25gaussians-paper";
  std::string device = "cpu";
  std::string precision;
  std::string weights;
  int64_t batch = 64;
  int64_t channels = 0;
  int64_t size = 0;
  double seconds = 3;
  int threads = 0;
};

// Something to time, and what it works on.
struct Work {
  explicit Work(const Arguments& arguments)
      : device(parse_device(arguments.device)),
        floats(torch::TensorOptions(torch::kFloat).device(device)),
        random(device) {}

  torch::Device device;
  torch::TensorOptions floats;
  Random random;
  std::unique_ptr<RunSettings> settings;
  std::unique_ptr<DataSource> source;
  std::unique_ptr<Method> method;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Inception> inception;
  std::unique_ptr<AllowTf32> rounding;
  torch::Tensor progress, data;
  std::vector<torch::Tensor> changed;  // by a step
  int64_t iteration = 0;
};

// Data that are files elsewhere have noise of their shape in their place; a toy's are drawn.
void make_data(Work& work, const Arguments& arguments) {
  constexpr int64_t kCifarSide = 32;
  constexpr int64_t kMnistPixels = 784;
  const auto& data = work.settings->data;
  const int64_t n = arguments.batch;
  if (data.logit) {
    work.data = work.random.normal({n, kMnistPixels}, work.floats);
  } else if (is_image_data(data.name)) {
    const int64_t usual = data.size > 0 ? data.size : kCifarSide;
    const int64_t side = arguments.size > 0 ? arguments.size : usual;
    work.data = work.random.normal({n, 3, side, side}, work.floats).clamp(-1, 1);
  } else {
    work.source = open_data(data, work.device);
    work.data = work.source->draw(n, work.random);
  }
}

// The method of a preset.
void make_method(Work& work, const Arguments& arguments) {
  const std::string path = std::string(DDAEBM_PRESETS) + "/" + arguments.preset + ".toml";
  auto file = ConfigFile::parse(read_file(path), path);
  if (!arguments.precision.empty()) file.set("image_net.precision=" + arguments.precision);
  if (arguments.channels > 0) {
    file.set("image_net.channels=" + std::to_string(arguments.channels));
  }
  work.settings = std::make_unique<RunSettings>(file);
  make_data(work, arguments);
  const auto event = work.data.sizes().slice(1).vec();
  work.method = work.settings->method_settings->build(event, work.floats);
  // As in training: networks for images have a setting of their own.
  if (event.size() == 1) work.rounding = std::make_unique<AllowTf32>(work.settings->train.tf32);
}

std::function<void()> training_step(Work& work) {
  work.optimizer = std::make_unique<Optimizer>(*work.method, work.settings->train.optimizer);
  for (const auto& [name, tensor] : work.optimizer->state()) work.changed.push_back(tensor);
  work.progress = torch::zeros({}, work.floats);
  return [&work] {
    if (work.source) work.data = work.source->draw(work.data.size(0), work.random);
    work.method->step(work.data, work.progress, work.random,
                      [&](size_t player, const torch::Tensor& loss, bool last) {
                        work.optimizer->update(player, loss, last);
                      });
    work.optimizer->average_buffers();
  };
}

std::function<void()> pass(Work& work, const Arguments& arguments) {
  const int64_t n = arguments.batch;
  if (arguments.what == "features") {
    work.inception = std::make_unique<Inception>(arguments.weights, work.floats);
    work.data = torch::randint(0, 256, {n, 3, 32, 32}, work.floats.dtype(torch::kByte));
    return [&work] { work.inception->features(work.data); };
  }
  make_method(work, arguments);
  if (arguments.what == "step") return training_step(work);
  work.method->module().eval();
  if (arguments.what == "sample") return [&work, n] { work.method->sample(n, work.random); };
  return [&work] { work.method->log_density(work.data); };
}

// The median of one call's time, once it has been called for a while.
double milliseconds(const std::function<void()>& once, double seconds, torch::Device device) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const auto of_calls = [&](int times) {
    const auto start = Clock::now();
    for (int i = 0; i < times; ++i) once();
    if (device.is_cuda()) torch::cuda::synchronize();
    return 1000 * since(start) / times;
  };
  for (const auto start = Clock::now(); since(start) < seconds / 4;) of_calls(1);
  // A GPU runs on from one iteration to the next without waiting for the host.
  std::vector<double> rounds;
  for (const auto start = Clock::now(); rounds.empty() || since(start) < seconds;) {
    rounds.push_back(of_calls(device.is_cuda() ? 5 : 1));
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

double time_of(Work& work, const std::function<void()>& once, const Arguments& arguments) {
  if (arguments.what != "step") return milliseconds(once, arguments.seconds, work.device);
  RepeatedStep step(once, work.changed, work.device);
  const auto iteration = [&] {
    work.random.restart(Random::kTraining, static_cast<uint64_t>(work.iteration));
    work.optimizer->set_iteration(work.iteration++, 100000);
    step();
  };
  return milliseconds(iteration, arguments.seconds, work.device);
}

nlohmann::json measure(const Arguments& arguments) {
  Work work(arguments);
  const auto once = pass(work, arguments);
  const auto peak = peak_memory(once, work.device);
  nlohmann::json found;
  found["ms"] = time_of(work, once, arguments);
  double bytes = 0;
  if (peak) {
    // What a step changes was there before it.
    bytes = static_cast<double>(*peak);
    for (const auto& tensor : work.changed) bytes += static_cast<double>(tensor.nbytes());
  } else {
    rusage used{};  // by the whole process
    getrusage(RUSAGE_SELF, &used);
    bytes = 1024.0 * static_cast<double>(used.ru_maxrss);
  }
  found["gb"] = bytes / 1e9;
  return found;
}

int run(int argc, char** argv) {
  ops::tune_process(argv);
  Arguments arguments;
  CLI::App app("Times a training step, sampling, scoring or features; `./dev bench` runs it.");
  app.add_option("--what", arguments.what)
      ->check(CLI::IsMember({"step", "sample", "score", "features"}));
  app.add_option("--preset", arguments.preset, "a name of presets/");
  app.add_option("--device", arguments.device, "cpu or cuda");
  app.add_option("--precision", arguments.precision, "of image networks: float32, tf32, bf16");
  app.add_option("--weights", arguments.weights, "features: the network's weights");
  app.add_option("--batch", arguments.batch)->check(CLI::PositiveNumber);
  app.add_option("--channels", arguments.channels, "of image networks, instead of the preset's");
  app.add_option("--size", arguments.size, "of images, instead of the preset's");
  app.add_option("--seconds", arguments.seconds);
  app.add_option("--threads", arguments.threads, "of LibTorch; our own choice if left out");
  CLI11_PARSE(app, argc, argv);
  if (arguments.threads > 0) at::set_num_threads(arguments.threads);
  std::cout << measure(arguments) << "\n";
  return 0;
}

}  // namespace
}  // namespace ddaebm

int main(int argc, char** argv) {
  try {
    return ddaebm::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
