#pragma once

#include <functional>
#include <memory>

#include <torch/types.h>

#include "ddaebm/data/toy.h"
#include "ddaebm/random.h"

// What the toy data sets share; for the files of this folder only.
namespace ddaebm::toy {

std::unique_ptr<Toy> make_25gaussians();
std::unique_ptr<Toy> make_8gaussians();
std::unique_ptr<Toy> make_circles();
std::unique_ptr<Toy> make_rings();
std::unique_ptr<Toy> make_checkerboard();
std::unique_ptr<Toy> make_swissroll();
std::unique_ptr<Toy> make_2spirals();
std::unique_ptr<Toy> make_moons();
std::unique_ptr<Toy> make_pinwheel();

// i % parts for the points i = 0 .. n - 1 of a batch: [n] int64 on the random numbers' device.
torch::Tensor part_of_batch(int64_t n, int64_t parts, const Random& random);

// Calls f: [n, 2] float64 -> [n] on pieces of x [N, 2], n such that a table [n, columns] takes 4
// MB; the result is [N] of x's type.
torch::Tensor in_chunks(const torch::Tensor& x, int64_t columns,
                        const std::function<torch::Tensor(const torch::Tensor&)>& f);

// Log-density at x of round Gaussians at centres [M, 2] with log-weights [M] (float64).
torch::Tensor mixture_log_density(const torch::Tensor& x, const torch::Tensor& centres,
                                  const torch::Tensor& log_weights, double std);

// Gauss-Legendre rule on [low, high]: the weights sum to high - low. Float64 [count] on the CPU.
struct Rule {
  torch::Tensor nodes;
  torch::Tensor weights;
};
Rule gauss_legendre(double low, double high, int64_t count);

}  // namespace ddaebm::toy
