#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// Columns of numbers. `names` is empty where the file has no header line.
struct Csv {
  std::vector<std::string> names;
  torch::Tensor rows;  // [N, D] float64
};

// Separators: comma, semicolon or tab, found from the first line. A first line that is not all
// numbers is the header. Blank lines and those that begin with '#' are skipped; cells may be
// quoted. Empty and ragged files, and cells that are empty or no number, are errors that name line
// and column. NaN and infinities are read as such: whoever uses the rows decides.
Csv read_csv(const std::filesystem::path& path);
void write_csv(const std::filesystem::path& path, const Csv& csv);

}  // namespace ddaebm
