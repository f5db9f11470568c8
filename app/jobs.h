#pragma once

#include <vector>

#include <CLI/CLI.hpp>

#include "ddaebm/train/compare.h"

namespace ddaebm::app {

// A comparison to be made.
struct Contest {
  std::vector<Contestant> contestants;
  CompareOptions options;
};

void add_jobs_option(CLI::App& command, int64_t& jobs);

// Shares the training of contests out among as many processes, each with this one's command line,
// shows how far they are, and sets what then is this process's part.
void share_out(int64_t jobs, std::vector<Contest>& contests);

// Whether this is one of those processes.
bool is_job();

}  // namespace ddaebm::app
