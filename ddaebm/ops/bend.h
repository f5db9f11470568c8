#pragma once

namespace ddaebm::ops {

// What a dense layer does to its sums.
enum class Bend { linear, prelu, softplus, silu };

}  // namespace ddaebm::ops
