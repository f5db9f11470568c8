#include <map>
#include <tuple>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {
namespace {

using c10::cuda::CUDAStream;

// Newer LibTorch warns of what we mean to do: gradients of one weight from two streams.
template <class Context>
void allow_two_streams(Context& context) {
  if constexpr (requires { context.setWarnOnAccumulateGradStreamMismatch(false); }) {
    context.setWarnOnAccumulateGradStreamMismatch(false);
  }
}

CUDAStream new_stream(c10::DeviceIndex device, bool goes_first) {
  const c10::cuda::CUDAGuard guard(device);
  int least = 0;
  int greatest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t made = nullptr;
  C10_CUDA_CHECK(
      cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, goes_first ? greatest : least));
  return c10::cuda::getStreamFromExternal(made, device);
}

// For a thread, each stream has one companion a lane for good, so that memory that its work gave
// back serves its next work; of two threads on one stream, each has its own, since neither waits
// for the other's. LibTorch's own streams are few, and two that share one must not run side by
// side. Nothing in a pass waits for weights.
CUDAStream companion(const CUDAStream& stream, Beside::Lane lane) {
  using Key = std::tuple<int, cudaStream_t, Beside::Lane>;
  thread_local std::map<Key, CUDAStream> companions;
  const Key key(stream.device_index(), stream.stream(), lane);
  const auto found = companions.find(key);
  if (found != companions.end()) return found->second;
  allow_two_streams(at::globalContext());
  const auto made = new_stream(stream.device_index(), lane != Beside::Lane::weights);
  return companions.emplace(key, made).first->second;
}

void wait(const CUDAStream& waiting, const CUDAStream& first) {
  at::cuda::CUDAEvent done;
  done.record(first);
  done.block(waiting);
}

}  // namespace

void Beside::run_on_gpu(const std::function<void()>& work, const std::vector<torch::Tensor>& kept) {
  kept_.insert(kept_.end(), kept.begin(), kept.end());
  const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
  const auto side = companion(stream, lane_);
  wait(side, stream);
  const c10::cuda::CUDAStreamGuard guard(side);
  work();
}

void Beside::join_gpu() {
  const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
  wait(stream, companion(stream, lane_));
}

struct Handover::Event {
  at::cuda::CUDAEvent event;
};
Handover::Handover(torch::Device device) : device_(device) {}
Handover::~Handover() = default;

void Handover::made() {
  if (!device_.is_cuda()) {
    made_ = true;
    made_.notify_all();
    return;
  }
  event_ = std::make_unique<Event>();
  event_->event.record(c10::cuda::getCurrentCUDAStream(device_.index()));
}

void Handover::await() {
  if (!device_.is_cuda()) made_.wait(false);
  if (event_) event_->event.block(c10::cuda::getCurrentCUDAStream(device_.index()));
  event_.reset();
}

}  // namespace ddaebm::ops
