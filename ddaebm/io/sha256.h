#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddaebm {

using Sha256 = std::array<uint8_t, 32>;

Sha256 sha256(std::string_view bytes);
std::string hex(const Sha256& digest);

}  // namespace ddaebm
