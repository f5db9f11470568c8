#include <cstring>

#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/cuda/nccl.h>

#include "ddaebm/dist/backend.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

namespace nccl = torch::cuda::nccl;

// LibTorch's own thin calls, not its process group: they queue on the current stream and nothing
// else, so that a CUDA graph records them like any kernel.
class Nccl : public Backend {
 public:
  Nccl(const c10::intrusive_ptr<c10d::Store>& store, const Place& place, torch::Device device)
      : device_(device) {
    const c10::cuda::CUDAGuard guard(device);
    nccl::ncclUniqueId id{};
    std::vector<uint8_t> bytes(sizeof(id));
    if (place.rank == 0) {
      nccl::get_unique_id(id);
      std::memcpy(bytes.data(), &id, sizeof(id));
      store->set("nccl", bytes);
    }
    bytes = store->get("nccl");
    TORCH_CHECK(bytes.size() == sizeof(id), "the store gives another NCCL id than was set");
    std::memcpy(&id, bytes.data(), sizeof(id));
    comm_ = nccl::comm_init_rank(static_cast<int>(place.size), id, static_cast<int>(place.rank));
  }

  void sum(const torch::Tensor& values) override {
    const c10::cuda::CUDAGuard guard(device_);
    std::vector<torch::Tensor> list = {values};
    nccl::all_reduce(list, list, static_cast<int32_t>(nccl::ncclRedOp::Sum), {}, {comm_});
  }
  void from_first(const torch::Tensor& values) override {
    const c10::cuda::CUDAGuard guard(device_);
    nccl::broadcast({values}, {}, {comm_});
  }

 private:
  torch::Device device_;
  // Never destroyed: that waits for the other ranks, and the process ends anyway.
  nccl::ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                      const Place& place, torch::Device device) {
  if (!device.is_cuda()) {
    fail(
        "ranks of a LibTorch with CUDA run on GPUs, with NCCL; use --device cuda, or a build with "
        "a LibTorch for CPUs, whose ranks use Gloo");
  }
  return std::make_unique<Nccl>(store, place, device);
}

}  // namespace ddaebm
