#pragma once

#include <cstdint>
#include <string>

#include "ddaebm/serve/inputs.h"

namespace ddaebm::serve {

// What the body of a request for samples asks for.
struct SampleRequest {
  int64_t n = 16;
  uint64_t seed = 0;
  std::string format = "json";
  bool path = false;
};

// Reads {"n": 16, "seed": 0, "format": "json", "path": false}; an empty body is all defaults, with
// a seed by chance. All that is not as expected is an Error.
SampleRequest parse_sample_request(const std::string& body, const Inputs& inputs,
                                   int64_t numbers_a_sample);

}  // namespace ddaebm::serve
