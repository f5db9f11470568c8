#include <algorithm>
#include <chrono>
#include <cstdlib>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "ddaebm/dist/backend.h"

namespace ddaebm {
namespace {

using c10d::ProcessGroupGloo;

// Elements that are summed at once; some buckets under way at a time keep the connection busy while
// others are added up.
constexpr int64_t kBucket = int64_t{8} << 20;

class Gloo : public Backend {
 public:
  Gloo(const c10::intrusive_ptr<c10d::Store>& store, const Place& place)
      : group_(store, static_cast<int>(place.rank), static_cast<int>(place.size),
               options(place.address)) {}

  void sum(const torch::Tensor& values) override {
    const auto flat = values.view(-1);
    std::vector<c10::intrusive_ptr<c10d::Work>> under_way;
    for (int64_t from = 0; from < flat.numel(); from += kBucket) {
      std::vector<torch::Tensor> bucket = {
          flat.slice(0, from, std::min(from + kBucket, flat.numel()))};
      under_way.push_back(group_.allreduce(bucket));
    }
    for (const auto& work : under_way) work->wait();
  }
  void from_first(const torch::Tensor& values) override {
    std::vector<torch::Tensor> list = {values};
    group_.broadcast(list)->wait();
  }

 private:
  static c10::intrusive_ptr<ProcessGroupGloo::Options> options(const std::string& address) {
    // Long, as the others wait here while rank 0 evaluates; one that dies is noticed at once.
    auto made = ProcessGroupGloo::Options::create(std::chrono::hours(2));
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface != nullptr) {
      made->devices.push_back(ProcessGroupGloo::createDeviceForInterface(interface));
    } else if (address == "127.0.0.1" || address == "localhost") {
      made->devices.push_back(ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    } else {
      made->devices.push_back(ProcessGroupGloo::createDefaultDevice());
    }
    return made;
  }
  ProcessGroupGloo group_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                      const Place& place, torch::Device /*device*/) {
  return std::make_unique<Gloo>(store, place);
}

}  // namespace ddaebm
