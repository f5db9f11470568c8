#include "ddaebm/train/graph.h"

namespace ddaebm {

struct RepeatedStep::Graph {};

RepeatedStep::RepeatedStep(std::function<void()> step, const std::vector<torch::Tensor>&,
                           torch::Device, const at::Generator&)
    : step_(std::move(step)) {}
RepeatedStep::~RepeatedStep() = default;

void RepeatedStep::operator()() { step_(); }

struct Lane::Stream {};

Lane::Lane(torch::Device) {}
Lane::~Lane() = default;
Lane::Lane(Lane&&) noexcept = default;

void Lane::run(const std::function<void()>& work) const { work(); }
void Lane::follow() const {}

}  // namespace ddaebm
