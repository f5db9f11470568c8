#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/types.h>

#include "ddaebm/dist/launch.h"
#include "ddaebm/error.h"
#include "ddaebm/random.h"

namespace ddaebm {

// Another rank is gone, or has told why it ends.
class RankLost : public Error {
 public:
  using Error::Error;
};

// The processes that train one model together, as one of them sees them; by itself, one process
// alone, for which all that follows does nothing. Every rank must call the same in the same order.
// A rank that is lost is a RankLost that names it, in all the others.
class Ranks {
 public:
  Ranks();
  // Meets the others; Gloo for tensors of a CPU, NCCL for those of a GPU.
  Ranks(const Place& place, torch::Device device);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int64_t rank() const { return share_.rank; }
  int64_t size() const { return share_.size; }
  bool first() const { return share_.rank == 0; }
  Share share() const { return share_; }

  // In place, over all ranks; on a GPU queued, and may be recorded in a CUDA graph.
  void sum(const torch::Tensor& values) const;
  void mean(const torch::Tensor& values) const;
  // In place, what rank 0 has.
  void from_first(const torch::Tensor& values) const;
  // Whether one of the ranks says so.
  bool any(bool here) const;
  // An Error, in every rank, where the number is not the same in all: `what` differs.
  void check_equal(uint64_t number, const std::string& what) const;

  // Tells the others why this rank cannot go on.
  void fail_with(const std::string& reason) const noexcept;
  // After the last call of all: nobody is missed from here on.
  void part() const;

 private:
  template <class Call>
  void together(const Call& call) const;

  Share share_;
  torch::Device device_ = torch::kCPU;
  struct Meeting;
  std::unique_ptr<Meeting> meeting_;
};

}  // namespace ddaebm
