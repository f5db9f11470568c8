#pragma once

namespace ddaebm::ops {

// Settles, for the whole process, who runs threads on a CPU and how freed memory is kept. Called
// first thing by programs that train, with main's arguments: it may start the program anew, since
// OpenMP reads its environment before main. OMP_NUM_THREADS and OMP_WAIT_POLICY are respected.
// Without arguments it does what can be done without that.
void tune_process(char** argv = nullptr);

}  // namespace ddaebm::ops
