#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddaebm/train/graph.h"

namespace ddaebm {

struct RepeatedStep::Graph {
  at::cuda::CUDAGraph graph;
};

RepeatedStep::RepeatedStep(std::function<void()> step, const std::vector<torch::Tensor>& state,
                           torch::Device device, const at::Generator& generator)
    : step_(std::move(step)) {
  if (!device.is_cuda()) return;
  std::vector<torch::Tensor> kept;
  for (const auto& tensor : state) kept.push_back(tensor.detach().clone());
  c10::cuda::device_synchronize();
  graph_ = std::make_unique<Graph>();
  {
    // In a lane, on its own stream: libraries keep a workspace for each stream, which recordings
    // that run side by side must not share.
    const auto current = c10::cuda::getCurrentCUDAStream(device.index());
    const auto stream = current == c10::cuda::getDefaultCUDAStream(device.index())
                            ? c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())
                            : current;
    const c10::cuda::CUDAStreamGuard guard(stream);
    // Libraries choose algorithms and allocate workspaces in the first calls, which a recording
    // must not hold.
    for (int i = 0; i < 3; ++i) step_();
    c10::cuda::device_synchronize();
    // The recording has memory of its own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    if (generator.defined()) graph_->graph.register_generator_state(generator);
    graph_->graph.capture_begin();
    step_();
    graph_->graph.capture_end();
    stream.synchronize();
  }
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < state.size(); ++i) torch::Tensor(state[i]).copy_(kept[i]);
}

RepeatedStep::~RepeatedStep() = default;

void RepeatedStep::operator()() {
  if (graph_) {
    graph_->graph.replay();
  } else {
    step_();
  }
}

struct Lane::Stream {
  c10::cuda::CUDAStream stream;
};

Lane::Lane(torch::Device device) {
  if (!device.is_cuda()) return;
  stream_ = std::make_unique<Stream>(
      Stream{c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())});
}
Lane::~Lane() = default;
Lane::Lane(Lane&&) noexcept = default;

void Lane::run(const std::function<void()>& work) const {
  if (!stream_) return work();
  const c10::cuda::CUDAStreamGuard guard(stream_->stream);
  work();
}

void Lane::follow() const {
  if (!stream_) return;
  at::cuda::CUDAEvent event;
  event.record(c10::cuda::getCurrentCUDAStream(stream_->stream.device_index()));
  event.block(stream_->stream);
}

}  // namespace ddaebm
