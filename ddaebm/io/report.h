#pragma once

#include <filesystem>

namespace ddaebm {

// Writes report.html into a run folder from what is there: settings, curves, numbers, picture. One
// file that needs nothing else.
void write_report(const std::filesystem::path& run_folder);

}  // namespace ddaebm
