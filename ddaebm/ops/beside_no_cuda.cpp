#include "ddaebm/ops/beside.h"

namespace ddaebm::ops {

Beside::Beside(torch::Device device, const std::function<void()>& work) : device_(device) {
  work();
}
void Beside::join() {}

}  // namespace ddaebm::ops
