#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {
namespace {

// Always the same one, so that memory that its work gave back serves its next work.
c10::cuda::CUDAStream side_stream(torch::Device device) {
  static const auto stream = c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index());
  return stream;
}

void wait(const c10::cuda::CUDAStream& waiting, const c10::cuda::CUDAStream& first) {
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
  const auto side = side_stream(device);
  wait(side, c10::cuda::getCurrentCUDAStream(device.index()));
  const c10::cuda::CUDAStreamGuard guard(side);
  work();
}

void Beside::join() {
  if (device_.is_cuda()) {
    wait(c10::cuda::getCurrentCUDAStream(device_.index()), side_stream(device_));
  }
}

}  // namespace ddaebm::ops
