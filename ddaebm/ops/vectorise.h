#pragma once

#include <cstdint>

// Before a function that loops over memory: compiled for several instruction sets, and the best
// that the processor has is chosen when the program starts. Sanitizers do not run that early.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DDAEBM_VECTORISE \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDAEBM_VECTORISE
#endif
