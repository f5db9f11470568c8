#pragma once

#include <cstdint>

#include <torch/types.h>

namespace ddaebm {

struct InceptionScore {
  double mean = 0.0;  // over the parts
  double std = 0.0;   // of the parts' scores, divided by their number
};

// exp of the mean of KL(p(class | image) || p(class)), where p(class) is the mean over the part.
// `logits` [N, K] are cut into `parts` in their order; N < parts is an Error. Between 1 and K.
InceptionScore inception_score(const torch::Tensor& logits, int64_t parts);

}  // namespace ddaebm
