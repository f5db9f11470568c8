#include <map>
#include <mutex>
#include <utility>

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
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

// Each stream has one companion for good, so that memory that its work gave back serves its next
// work.
CUDAStream companion(const CUDAStream& stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, cudaStream_t>, CUDAStream> companions;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = [](const CUDAStream& of) {
    return std::make_pair(static_cast<int>(of.device_index()), of.stream());
  };
  const auto found = companions.find(key(stream));
  if (found != companions.end()) return found->second;
  allow_two_streams(at::globalContext());
  const auto taken = [&](const CUDAStream& candidate) {
    if (candidate == stream || companions.count(key(candidate)) > 0) return true;
    for (const auto& [of, other] : companions) {
      if (other == candidate) return true;
    }
    return false;
  };
  auto candidate = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, stream.device_index());
  for (int i = 0; i < 32 && taken(candidate); ++i) {
    candidate = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, stream.device_index());
  }
  return companions.emplace(key(stream), candidate).first->second;
}

void wait(const CUDAStream& waiting, const CUDAStream& first) {
  at::cuda::CUDAEvent done;
  done.record(first);
  done.block(waiting);
}

}  // namespace

Beside::Beside(torch::Device device, const std::function<void()>& work) : device_(device) {
  if (!device.is_cuda()) {
    work();
    return;
  }
  const auto stream = c10::cuda::getCurrentCUDAStream(device.index());
  const auto side = companion(stream);
  wait(side, stream);
  const c10::cuda::CUDAStreamGuard guard(side);
  work();
}

void Beside::join() {
  if (!device_.is_cuda()) return;
  const auto stream = c10::cuda::getCurrentCUDAStream(device_.index());
  wait(stream, companion(stream));
}

}  // namespace ddaebm::ops
