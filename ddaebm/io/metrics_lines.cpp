#include "ddaebm/io/metrics_lines.h"

#include <sstream>

#include "ddaebm/io/file.h"

namespace ddaebm {

std::vector<nlohmann::ordered_json> read_metrics(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> found;
  if (!std::filesystem::exists(path)) return found;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("iteration")) found.push_back(std::move(json));
  }
  return found;
}

}  // namespace ddaebm
