// How long ranks take to average gradients: ddaebm_reduce RANKS NUMBERS [cpu|cuda].
// Under a launcher (torchrun, srun, mpirun) RANKS is what that says.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "ddaebm/dist/ranks.h"

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc < 3) {
    fmt::print(stderr, "ddaebm_reduce RANKS NUMBERS [cpu|cuda]\n");
    return 2;
  }
  const auto place = ddaebm::place_of_process([](const char* name) { return std::getenv(name); });
  if (!place) return ddaebm::run_local_ranks(std::stoll(arguments[1]), arguments, {0});
  const bool cuda = argc > 3 && arguments[3] == "cuda";
  const torch::Device device = cuda ? torch::Device(torch::kCUDA, place->local_rank) : torch::kCPU;
  const ddaebm::Ranks ranks(*place, device);
  const auto numbers = torch::ones({std::stoll(arguments[2])}, device);
  std::vector<double> seconds;
  for (int i = 0; i < 11; ++i) {
    const auto start = Clock::now();
    ranks.mean(numbers);
    (void)numbers[0].item<float>();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const auto bytes = static_cast<double>(numbers.nbytes());
  if (ranks.first()) {
    fmt::print("{} ranks, {:.0f} MB: median {:.4f} s ({:.4f} to {:.4f}), {:.2f} GB/s\n",
               ranks.size(), bytes / 1e6, median, seconds.front(), seconds.back(),
               bytes / median / 1e9);
  }
  ranks.part();
  return 0;
}
