#include "ddaebm/train/memory.h"

namespace ddaebm {

std::optional<int64_t> peak_memory(const std::function<void()>&, torch::Device) {
  return std::nullopt;
}
int64_t free_memory(torch::Device) { return 0; }

}  // namespace ddaebm
