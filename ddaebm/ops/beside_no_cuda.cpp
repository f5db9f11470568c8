#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {

void Beside::run(const std::function<void()>& work, const std::vector<torch::Tensor>& /*kept*/) {
  work();
}
void Beside::join() {}

}  // namespace ddaebm::ops
