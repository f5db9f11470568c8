#pragma once

#include <filesystem>
#include <vector>

#include <nlohmann/json.hpp>

namespace ddaebm {

// The lines of a run's metrics.jsonl that have an iteration; none where there is no such file. A
// line that a killed run left half written is passed over.
std::vector<nlohmann::ordered_json> read_metrics(const std::filesystem::path& path);

}  // namespace ddaebm
