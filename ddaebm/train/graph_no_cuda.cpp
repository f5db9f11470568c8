#include "ddaebm/train/graph.h"

namespace ddaebm {

struct RepeatedStep::Graph {};

RepeatedStep::RepeatedStep(std::function<void()> step, const std::vector<torch::Tensor>&,
                           torch::Device)
    : step_(std::move(step)) {}
RepeatedStep::~RepeatedStep() = default;

void RepeatedStep::operator()() { step_(); }

}  // namespace ddaebm
