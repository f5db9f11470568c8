#include "ddaebm/dist/ranks.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "ddaebm/dist/backend.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr std::chrono::seconds kMeeting{300};  // for all ranks to come
constexpr std::chrono::seconds kBeat{1};
constexpr std::chrono::seconds kSilence{30};  // after which a rank counts as lost
constexpr std::chrono::seconds kRollCall{5};  // for the others to answer once something broke

// A connection to the store that rank 0 keeps.
StorePtr connect(const Place& place, bool may_serve) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = may_serve && place.rank == 0;
  options.waitWorkers = false;
  options.timeout = kMeeting;
  try {
    return c10::make_intrusive<c10d::TCPStore>(place.address, options);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    fail("rank {} cannot meet the others at {}:{}; is rank 0 there, and the port free? ({})",
         place.rank, place.address, place.port, why.substr(0, why.find('\n')));
  }
}

std::string key(const char* what, int64_t rank) { return fmt::format("{}-{}", what, rank); }

void put(c10d::Store& store, const std::string& name, const std::string& text) {
  store.set(name, std::vector<uint8_t>(text.begin(), text.end()));
}

std::string take(c10d::Store& store, const std::string& name) {
  const auto bytes = store.get(name);
  return {bytes.begin(), bytes.end()};
}

// Sees to it that a rank which falls silent ends the others, even those that wait for it in a
// kernel: each rank leaves a beat in the store and looks at its neighbour's.
class Watch {
 public:
  explicit Watch(const Place& place)
      : place_(place), store_(connect(place, /*may_serve=*/false)), thread_([this] { run(); }) {}
  ~Watch() {
    stop();
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

 private:
  void run() {
    const int64_t neighbour = (place_.rank + 1) % place_.size;
    int64_t last = -1;
    auto heard = Clock::now();
    std::string lost;
    while (lost.empty()) {
      try {
        store_->add(key("beat", place_.rank), 1);
        const int64_t now = store_->add(key("beat", neighbour), 0);
        if (now != std::exchange(last, now)) heard = Clock::now();
        if (Clock::now() - heard > kSilence) put(*store_, "lost", std::to_string(neighbour));
        if (store_->check({"lost"})) lost = take(*store_, "lost");
      } catch (const std::exception&) {
        lost = "0";  // who keeps the store
      }
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kBeat, [&] { return stop_; })) return;
    }
    // The training thread may notice by itself, and has more to say.
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kSilence, [&] { return stop_; })) return;
    fmt::print(stderr, "ddaebm: rank {}: rank {} is gone\n", place_.rank, lost);
    std::_Exit(1);
  }

  Place place_;
  StorePtr store_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

struct Ranks::Meeting {
  Meeting(const Place& place, torch::Device device)
      : store(connect(place, /*may_serve=*/true)), backend(make_backend(store, place, device)) {
    if (place.size > 1) watch = std::make_unique<Watch>(place);
  }
  StorePtr store;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Watch> watch;
};

Ranks::Ranks() = default;
Ranks::Ranks(const Place& place, torch::Device device)
    : share_{place.rank, place.size},
      device_(device),
      meeting_(std::make_unique<Meeting>(place, device)) {}
Ranks::~Ranks() = default;

// An exception of the backend says that a connection broke; who broke it the others know best.
template <class Call>
void Ranks::together(const Call& call) const {
  try {
    call(*meeting_->backend);
    return;
  } catch (const std::exception& error) {
    if (meeting_->watch) meeting_->watch->stop();
    std::string lost;
    std::string told;
    try {
      put(*meeting_->store, key("end", rank()), "");
      const auto deadline = Clock::now() + kRollCall;
      for (int64_t other = 0; other < size(); ++other) {
        const std::string name = key("end", other);
        while (!meeting_->store->check({name}) && Clock::now() < deadline) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        if (!meeting_->store->check({name})) {
          lost += fmt::format("{}{}", lost.empty() ? "" : ", ", other);
        } else if (const auto reason = take(*meeting_->store, name); !reason.empty()) {
          told = fmt::format("rank {} ended: {}", other, reason);
        }
      }
    } catch (const std::exception&) {
      lost = "0";  // its store does not answer
    }
    // The store goes with rank 0: time for the others to finish their roll call.
    if (first()) std::this_thread::sleep_for(kBeat);
    throw RankLost(fmt::format("rank {}: {}", rank(),
                               !told.empty() ? told
                               : !lost.empty()
                                   ? fmt::format("rank {} is gone", lost)
                                   : fmt::format("the ranks lost each other: {}", error.what())));
  }
}

void Ranks::sum(const torch::Tensor& values) const {
  if (!meeting_) return;
  together([&](Backend& backend) { backend.sum(values); });
}

void Ranks::mean(const torch::Tensor& values) const {
  if (!meeting_) return;
  sum(values);
  torch::Tensor(values).mul_(1.0 / static_cast<double>(size()));
}

void Ranks::from_first(const torch::Tensor& values) const {
  if (!meeting_) return;
  together([&](Backend& backend) { backend.from_first(values); });
}

bool Ranks::any(bool here) const {
  if (!meeting_) return here;
  const auto count = torch::full({1}, here ? 1 : 0, torch::TensorOptions(torch::kLong)).to(device_);
  sum(count);
  return count.item<int64_t>() > 0;
}

void Ranks::check_equal(uint64_t number, const std::string& what) const {
  if (!meeting_) return;
  auto all = torch::zeros({size()}, torch::kLong);
  all[rank()].fill_(static_cast<int64_t>(number));
  all = all.to(device_);
  sum(all);
  all = all.to(torch::kCPU);
  for (int64_t other = 1; other < size(); ++other) {
    if (all[other].item<int64_t>() != all[0].item<int64_t>()) {
      fail("{} of rank {} differ from those of rank 0", what, other);
    }
  }
}

void Ranks::fail_with(const std::string& reason) const noexcept {
  if (!meeting_) return;
  try {
    if (meeting_->watch) meeting_->watch->stop();
    put(*meeting_->store, key("end", rank()), reason);
    if (first()) std::this_thread::sleep_for(kBeat);  // as above
  } catch (const std::exception&) {                   // nobody to tell
  }
}

void Ranks::part() const {
  if (!meeting_) return;
  if (meeting_->watch) meeting_->watch->stop();
  (void)any(false);
}

}  // namespace ddaebm
