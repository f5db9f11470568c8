#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace ddaebm {

// A square window of the plane, [low, high] in both directions.
struct Window {
  double low = -4.0;
  double high = 4.0;
};

// Density values [rows, columns] (row 0 at the bottom, values >= 0) as a picture of `size` pixels a
// side in a perceptually even colour map; the largest value is the brightest. Values that are not
// finite count as 0.
torch::Tensor heatmap(const torch::Tensor& density, int64_t size);

// Points [N, 2] as dots on the map's darkest colour; where dots overlap it grows brighter.
torch::Tensor scatter(const torch::Tensor& points, const Window& window, int64_t size);

// Pictures of one height side by side with a white gap.
torch::Tensor beside(const std::vector<torch::Tensor>& pictures, int64_t gap = 8);

// Marks of an axis from low to high (low < high): about five multiples of 1, 2 or 5 times a power
// of ten.
struct Tick {
  double at;  // along the axis, so the exponent where that is logarithmic
  std::string label;
};
std::vector<Tick> linear_ticks(double low, double high);

// One line of a chart.
struct Series {
  std::string name;
  // x, y; points that cannot be drawn (not finite; y <= 0 on a logarithmic axis) are left out
  std::vector<std::pair<double, double>> points;
};

// A chart as SVG text, with axes, ticks, grid and legend; scales to its container's width and
// follows the page's light or dark colours (CSS variables --ink, --grid).
std::string line_chart(const std::string& title, const std::string& x_label,
                       const std::vector<Series>& series, bool log_y = false);

}  // namespace ddaebm
