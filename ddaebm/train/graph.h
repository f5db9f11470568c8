#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// A step that is run again and again. On a CPU a run is a call; on a GPU the step is recorded once
// as a CUDA graph and every run replays that, which spares the launch of each kernel. The step must
// work on tensors that stay where they are, and never wait for the device.
class RepeatedStep {
 public:
  // Records. `state`: every tensor that the step changes; recording leaves them as they were, but
  // uses up random numbers, those of `generator` too if the step draws from one besides the
  // default.
  RepeatedStep(std::function<void()> step, const std::vector<torch::Tensor>& state,
               torch::Device device, const at::Generator& generator = {});
  ~RepeatedStep();
  RepeatedStep(const RepeatedStep&) = delete;
  RepeatedStep& operator=(const RepeatedStep&) = delete;

  void operator()();

 private:
  struct Graph;
  std::function<void()> step_;
  std::unique_ptr<Graph> graph_;
};

// A queue of work on a GPU beside those of others; on a CPU there is but one.
class Lane {
 public:
  explicit Lane(torch::Device device);
  ~Lane();
  Lane(Lane&&) noexcept;
  Lane& operator=(Lane&&) = delete;

  // Calls `work`, whose kernels go to this queue.
  void run(const std::function<void()>& work) const;
  // What this queue is given from now on waits for what the current one has.
  void follow() const;

 private:
  struct Stream;
  std::unique_ptr<Stream> stream_;
};

}  // namespace ddaebm
