#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include "ddaebm/random.h"

namespace ddaebm {

// A 2-D distribution that can be drawn from without end and whose density is known.
class Toy {
 public:
  virtual ~Toy() = default;
  // [n, 2] float32 on the random numbers' device; no host synchronisation, so it can be captured.
  virtual torch::Tensor sample(int64_t n, Random& random) const = 0;
  // Natural log of the normalised density at x [N, 2], any float type and device -> [N] (-inf where
  // 0).
  virtual torch::Tensor log_density(const torch::Tensor& x) const = 0;
  // Centres [M, 2] (float64, CPU) and standard deviation of the modes; no modes: an empty tensor.
  virtual torch::Tensor modes() const { return torch::empty({0, 2}, torch::kDouble); }
  virtual double mode_std() const { return 0.0; }
};

// A line of `toy_list`.
struct ToyInfo {
  std::string name;
  std::string description;
};
// 25gaussians, 8gaussians, pinwheel, swissroll, 2spirals, checkerboard, moons, circles, rings.
const std::vector<ToyInfo>& toy_list();
// An unknown name is an Error that lists the known ones.
std::unique_ptr<Toy> make_toy(const std::string& name);
// Whether there is one of that name.
bool is_toy(const std::string& name);

}  // namespace ddaebm
