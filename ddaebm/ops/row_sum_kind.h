#pragma once

namespace ddaebm::ops {

// The sums of row_sums.h.
enum class RowSumKind { weighted_squares, gaussian_nll, gaussian_kl };

}  // namespace ddaebm::ops
