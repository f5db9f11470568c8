#pragma once

#include <stdexcept>
#include <string>

#include <cuda_runtime.h>

// How kernels are launched, and their shared memory named, in words that a CPU's compiler takes too
// (tests/cuda_emulation).
#ifndef DDAEBM_CUDA_EMULATION
#define DDAEBM_SHARED(type, name, count) __shared__ type name[count]
#define DDAEBM_SHARED_LAUNCHED(type, name)                      \
  extern __shared__ __align__(16) unsigned char name##_bytes[]; \
  type* name = reinterpret_cast<type*>(name##_bytes)
#endif

namespace ddaebm::ops::cuda {

constexpr size_t kSharedBytes = 48 * 1024;  // of a block, without asking for more

// An attribute of the device at hand, or a number to do without it.
inline int device_attribute(cudaDeviceAttr attribute, int otherwise) {
  int device = 0;
  int value = 0;
  const bool found = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return found ? value : otherwise;
}
// With asking.
inline size_t most_shared_bytes() {
  static const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, kSharedBytes);
  return static_cast<size_t>(most);
}

struct Grid {
  dim3 blocks;
  unsigned threads;
  unsigned cluster = 1;  // of so many blocks, which Hopper has
  size_t shared = 0;     // bytes of DDAEBM_SHARED_LAUNCHED
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Grid& grid, void* stream, Arguments... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0) return;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {grid.cluster, 1, 1};
  if (grid.shared > kSharedBytes) {
    // All there is, so that no later launch lowers the limit of one that is recorded.
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(most_shared_bytes()));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = grid.cluster > 1 ? 1 : 0;
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("launching a kernel: ") + cudaGetErrorString(error));
  }
}

}  // namespace ddaebm::ops::cuda
