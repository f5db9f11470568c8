#include <c10/util/Exception.h>

#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {

void Beside::run_on_gpu(const std::function<void()>& /*work*/,
                        const std::vector<torch::Tensor>& /*kept*/) {
  TORCH_CHECK(false, "built without CUDA");
}
void Beside::join_gpu() { TORCH_CHECK(false, "built without CUDA"); }

struct Handover::Event {};
Handover::Handover(torch::Device device) : device_(device) {}
Handover::~Handover() = default;
void Handover::made() {
  made_ = true;
  made_.notify_all();
}
void Handover::await() { made_.wait(false); }

}  // namespace ddaebm::ops
