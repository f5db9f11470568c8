#include "ddaebm/ops/tuning.h"

#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <ATen/Parallel.h>

namespace ddaebm::ops {

void tune_process() {
#ifdef __GLIBC__
  // A step frees what it allocated, and the next wants it again: give none of it back to the
  // kernel, which would clear each page anew.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
  // OpenBLAS comes with threads of its own (1) or with those of OpenMP (2). Its own wake faster,
  // but would fight LibTorch's OpenMP threads for the cores. Nearly all the work is in matrix
  // products.
  using Parallel = int (*)();
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "openblas_get_parallel"));
  if (parallel != nullptr && parallel() == 1) at::set_num_threads(1);
}

}  // namespace ddaebm::ops
