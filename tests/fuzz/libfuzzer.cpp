// libFuzzer on one target, which the variable DDAEBM_FUZZ names; tests/fuzz/run builds and runs it.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "targets.h"

namespace {

const ddaebm::FuzzTarget& chosen() {
  const char* name = std::getenv("DDAEBM_FUZZ");
  for (const auto& target : ddaebm::fuzz_targets()) {
    if (name != nullptr && std::string_view(name) == target.name) return target;
  }
  for (const auto& target : ddaebm::fuzz_targets()) std::printf("%s\n", target.name);
  std::exit(name == nullptr ? 0 : 2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ddaebm::FuzzTarget& target = chosen();
  ddaebm::fuzz(target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
