#include "ddaebm/ops/tuning.h"

#include <dlfcn.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <thread>

#include <ATen/Parallel.h>

namespace ddaebm::ops {

void tune_process(char** argv) {
  // A step has hundreds of short parallel loops: a thread that sleeps in between costs more than
  // the loop. Where the program cannot be started anew, it is slower and no more.
  if (argv != nullptr && std::getenv("OMP_WAIT_POLICY") == nullptr) {
    setenv("OMP_WAIT_POLICY", "active", /*overwrite=*/1);
    execv("/proc/self/exe", argv);
  }
#ifdef __GLIBC__
  // A step frees what it allocated, and the next wants it again: never give any of it back to the
  // kernel, which would clear each page anew.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
  // LibTorch's threads share the work out (kernels::product); threads of OpenBLAS beside them would
  // fight for the cores. Networks for vectors do not fill more than a few.
  using SetThreads = void (*)(int);
  const auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set != nullptr) set(1);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 4));
  }
}

}  // namespace ddaebm::ops
