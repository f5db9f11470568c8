#include "ddaebm/train/energies.h"

#include "ddaebm/error.h"

namespace ddaebm {

std::vector<NumberSet> energy_sets(Model& model, const Units& units, const torch::Tensor& data,
                                   uint64_t seed) {
  std::vector<NumberSet> sets;
  const auto add = [&](const std::string& name, const torch::Tensor& x) {
    const auto scores = model.log_density(x);
    if (scores.isnan().any().item<bool>()) {
      fail("a score of {} data ({}) is NaN; has the training diverged?", scores.size(0), name);
    }
    sets.push_back({name, numbers_of(scores)});
  };
  add("real", data);
  const auto fakes = model.regenerated(data, seed);
  if (fakes.defined()) {
    add("made again", fakes);
  } else {
    add("samples", model.sample(data.size(0), seed));
  }
  Random random(torch::kCPU, seed);
  const auto scale = units.scale.to(data.options());
  for (const double deviation : {0.01, 0.1, 0.5}) {
    random.restart(Random::kEvaluation, sets.size());
    add(fmt::format("real + noise {}", deviation),
        data + deviation * scale * random.normal(data.sizes(), data.options()));
  }
  return sets;
}

}  // namespace ddaebm
