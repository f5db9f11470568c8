#include <cuda_runtime_api.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "ddaebm/train/memory.h"

namespace ddaebm {
namespace {

// Of all pools together.
int64_t taken(torch::Device device, bool at_peak) {
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return at_peak ? stats.allocated_bytes[0].peak : stats.allocated_bytes[0].current;
}

}  // namespace

std::optional<int64_t> peak_memory(const std::function<void()>& work, torch::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  const int64_t before = taken(device, false);
  work();
  return taken(device, true) - before;
}

int64_t free_memory(torch::Device device) {
  if (!device.is_cuda()) return 0;
  const c10::cuda::CUDAGuard guard(device);
  // What the allocator keeps for later is free too.
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t available = 0;
  size_t total = 0;
  return cudaMemGetInfo(&available, &total) == cudaSuccess ? static_cast<int64_t>(available) : 0;
}

}  // namespace ddaebm
