#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

struct cluster_group {
  void sync() const { emulation::cluster->all.arrive_and_wait(); }
  // The second half of a barrier is where its first was.
  void barrier_arrive() const { emulation::cluster->all.arrive_and_wait(); }
  void barrier_wait() const {}
  // The same place in the shared memory of another block of the cluster.
  template <class T>
  T* map_shared_rank(T* mine, int rank) const {
    const auto offset = reinterpret_cast<char*>(mine) - emulation::block->shared.data();
    auto& other = *emulation::cluster->blocks[static_cast<size_t>(rank)];
    return reinterpret_cast<T*>(other.shared.data() + offset);
  }
};
inline cluster_group this_cluster() { return {}; }

}  // namespace cooperative_groups
