#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <torch/types.h>

namespace ddaebm {

// Bytes that `work` takes at its peak beyond what was taken before, or nothing where the device
// does not count (a CPU).
std::optional<int64_t> peak_memory(const std::function<void()>& work, torch::Device device);

// Bytes that the device can still give; 0 where it does not count.
int64_t free_memory(torch::Device device);

}  // namespace ddaebm
