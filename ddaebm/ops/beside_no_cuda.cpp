#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {

void Beside::run(const std::function<void()>& work, const std::vector<torch::Tensor>& /*kept*/) {
  work();
}
void Beside::join() {}

struct Handover::Event {};
Handover::Handover(torch::Device device) : device_(device) {}
Handover::~Handover() = default;
void Handover::made() {}
void Handover::await() {}

}  // namespace ddaebm::ops
