#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

// How kernels are launched, and their shared memory named, in words that a CPU's compiler takes too
// (tests/cuda_emulation).
#ifndef DDAEBM_CUDA_EMULATION
#define DDAEBM_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace ddaebm::ops::cuda {

// Blocks come in clusters of `cluster`, which Hopper has.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, unsigned threads, unsigned cluster,
            void* stream, Arguments... arguments) {
  if (blocks.x == 0 || blocks.y == 0) return;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("launching a kernel: ") + cudaGetErrorString(error));
  }
}

}  // namespace ddaebm::ops::cuda
