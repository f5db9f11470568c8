// libFuzzer over everything that reads pickles. Not part of the build; by hand, with a LibTorch
// whose headers clang can read (2.x; clang 14 cannot read 1.13's as C++20):
//
//   sources="ddaebm/io/{pickle,torch_checkpoint,authors_checkpoint,zip,npy,bytes,file}.cpp"
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize=vptr -I. \
//     -isystem $TORCH/include -isystem $TORCH/include/torch/csrc/api/include -DFMT_HEADER_ONLY=1 \
//     tests/fuzz/pickle_fuzz.cpp $(eval echo $sources) ddaebm/data/cifar_python.cpp \
//     -L$TORCH/lib -Wl,-rpath,$TORCH/lib -ltorch_cpu -lc10 -lzip -o pickle_fuzz
//   cp -r tests/golden_pickle corpus
//   ./pickle_fuzz -max_len=20000 -rss_limit_mb=4096 -timeout=10 corpus
//
// A crash, a sanitizer's report or an exception that is no ddaebm::Error is a finding.

#include <cstdint>
#include <fstream>

#include <unistd.h>

#include "ddaebm/data/cifar_python.h"
#include "ddaebm/error.h"
#include "ddaebm/io/authors_checkpoint.h"
#include "ddaebm/io/torch_checkpoint.h"

namespace {

// Reads what a tensor claims to hold.
void touch(const ddaebm::PickleValue& value, int depth) {
  if (const auto* tensor = value.tensor()) (void)tensor->to(torch::kFloat64).sum().item<double>();
  if (depth == 0) return;
  if (value.list() != nullptr) {
    for (const auto& item : *value.list()) touch(item, depth - 1);
  }
  if (value.dict() != nullptr) {
    for (const auto& entry : *value.dict()) touch(entry.second, depth - 1);
  }
}

template <class Read>
void attempt(Read read) {
  try {
    read();
  } catch (const ddaebm::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);

  // As data.pkl would be, over a storage of 24 floats whatever its name.
  attempt([&] {
    std::string_view view = bytes;
    const ddaebm::PickleValue storage(torch::arange(24.0F));
    touch(ddaebm::take_pickle("fuzz", view, [&](const auto&) { return storage; }).value, 4);
  });

  static const std::string path = "/dev/shm/pickle_fuzz." + std::to_string(getpid());
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), bytes.size());
  attempt([&] {
    const auto content = ddaebm::read_torch_checkpoint(path).value;
    touch(content, 4);
    ddaebm::find_authors_networks(path, content);
  });
  attempt([&] { ddaebm::read_cifar_python(path); });
  return 0;
}
