#pragma once

// Enough of CUDA to run the kernels of ops/cuda on a CPU, thread by thread: a thread of a block is
// a thread of the machine, __syncthreads a barrier. For tests of what kernels compute where there
// is no GPU; blocks run one cluster after the other.

#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#define DDAEBM_CUDA_EMULATION
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)

using std::max;
using std::min;

struct dim3 {
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};

template <class T>
T __ldg(const T* p) {
  return *p;
}
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32U |
                               static_cast<uint32_t>(low));
}
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor = 9,  // as their values here
  cudaDevAttrMultiProcessorCount = 1,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 96 * 1024
};
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute;
  return cudaSuccess;
}

inline thread_local dim3 threadIdx, blockIdx, gridDim;

namespace emulation {

struct Block {
  Block(unsigned threads, size_t shared_bytes)
      : all(threads), lanes(threads), shared(shared_bytes) {
    for (unsigned first = 0; first < threads; first += 32) {
      warps.push_back(std::make_unique<std::barrier<>>(std::min(32U, threads - first)));
    }
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<uint64_t> lanes;                             // what each thread shows its warp
  std::vector<char> shared;                                // what the launch asked for
  std::vector<char> named = std::vector<char>(48 * 1024);  // for an array that the kernel names
};

struct Cluster {
  Cluster(unsigned count, unsigned threads, size_t shared) : all(count * threads) {
    for (unsigned i = 0; i < count; ++i) blocks.push_back(std::make_unique<Block>(threads, shared));
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<Block>> blocks;
};

// Of the thread that asks.
inline thread_local Block* block = nullptr;
inline thread_local Cluster* cluster = nullptr;

template <class T>
T* launched() {
  return reinterpret_cast<T*>(block->shared.data());
}

// The one array that a kernel names at a time, with every access checked: what a GPU would answer
// with an illegal access, or not at all.
template <class T>
class SharedArray {
 public:
  explicit SharedArray(size_t count)
      : first_(reinterpret_cast<T*>(block->named.data())), count_(count) {
    if (count * sizeof(T) > block->named.size()) throw std::runtime_error("shared memory");
  }
  T& operator[](size_t i) const {
    if (i >= count_) {
      std::fprintf(stderr, "element %zu of %zu in shared memory\n", i, count_);
      std::abort();
    }
    return first_[i];
  }

 private:
  T* first_;
  size_t count_;
};

inline void run(dim3 grid, unsigned threads, unsigned blocks, size_t shared,
                const std::function<void()>& kernel) {
  Cluster team(blocks, threads, shared);
  std::vector<std::thread> all;
  for (unsigned b = 0; b < blocks; ++b) {
    for (unsigned t = 0; t < threads; ++t) {
      all.emplace_back([&, b, t] {
        for (unsigned row = 0; row < grid.y * grid.z; ++row) {
          for (unsigned x = b; x < grid.x; x += blocks) {
            threadIdx = dim3(t);
            blockIdx = dim3(x, row % grid.y, row / grid.y);
            gridDim = grid;
            block = team.blocks[b].get();
            cluster = &team;
            kernel();
            team.all.arrive_and_wait();
          }
        }
      });
    }
  }
  for (auto& thread : all) thread.join();
}

}  // namespace emulation

#define DDAEBM_SHARED(type, name, count) const emulation::SharedArray<type> name(count)
#define DDAEBM_SHARED_LAUNCHED(type, name) type* name = emulation::launched<type>()

inline void __syncthreads() { emulation::block->all.arrive_and_wait(); }

namespace emulation {
template <class T>
T of_lane(T mine, unsigned from) {
  const unsigned lane = threadIdx.x;
  auto& warp = *block->warps[lane / 32];
  std::memcpy(&block->lanes[lane], &mine, sizeof mine);
  warp.arrive_and_wait();
  T found = mine;
  if (from / 32 == lane / 32 && from < block->lanes.size()) {
    std::memcpy(&found, &block->lanes[from], sizeof found);
  }
  warp.arrive_and_wait();
  return found;
}
}  // namespace emulation

template <class T>
T __shfl_down_sync(unsigned, T mine, unsigned far) {
  return emulation::of_lane(mine, threadIdx.x + far);
}
template <class T>
T __shfl_xor_sync(unsigned, T mine, unsigned far) {
  return emulation::of_lane(mine, threadIdx.x ^ far);
}

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const unsigned blocks = config->numAttrs > 0 ? config->attrs->val.clusterDim.x : 1;
  emulation::run(config->gridDim, config->blockDim.x, blocks, config->dynamicSmemBytes,
                 [&] { kernel(arguments...); });
  return cudaSuccess;
}
