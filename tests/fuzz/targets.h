#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddaebm {

// Something that reads what others have written. Whatever the bytes, `read` returns or throws a
// ddaebm::Error; a crash, a sanitizer's report or another exception is a finding.
struct FuzzTarget {
  const char* name;  // also of the folder of its corpus
  void (*read)(std::string_view bytes);
};
const std::vector<FuzzTarget>& fuzz_targets();

// Calls a target; a ddaebm::Error is an answer.
void fuzz(const FuzzTarget& target, std::string_view bytes);

}  // namespace ddaebm
