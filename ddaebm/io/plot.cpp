#include "ddaebm/io/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>

#include <fmt/format.h>

namespace ddaebm {
namespace {

// Viridis at 0, 0.1 ... 1; between them the change is close to linear.
constexpr std::array<std::array<double, 3>, 11> kViridis{{{68, 1, 84},
                                                          {72, 37, 118},
                                                          {65, 68, 135},
                                                          {53, 96, 141},
                                                          {42, 120, 142},
                                                          {33, 144, 140},
                                                          {34, 168, 132},
                                                          {67, 191, 113},
                                                          {122, 209, 81},
                                                          {187, 223, 39},
                                                          {253, 231, 37}}};

// Values [H, W] from 0 to 1 -> picture [H, W, 3].
torch::Tensor coloured(const torch::Tensor& values) {
  constexpr int64_t kShades = 256;
  torch::Tensor shades = torch::empty({kShades, 3}, torch::kUInt8);
  auto shade = shades.accessor<uint8_t, 2>();
  for (int64_t i = 0; i < kShades; ++i) {
    const double at = static_cast<double>(i) * (kViridis.size() - 1) / (kShades - 1);
    const size_t below = std::min(static_cast<size_t>(at), kViridis.size() - 2);
    for (size_t c = 0; c < 3; ++c) {
      const double mixed =
          std::lerp(kViridis[below][c], kViridis[below + 1][c], at - static_cast<double>(below));
      shade[i][static_cast<int64_t>(c)] = static_cast<uint8_t>(std::lround(mixed));
    }
  }
  const torch::Tensor index = (values * (kShades - 1)).round().to(torch::kLong).flatten();
  return shades.index_select(0, index).view({values.size(0), values.size(1), 3});
}

using Points = std::vector<std::pair<double, double>>;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  double span() const { return high - low; }
  bool contains(double value) const { return low <= value && value <= high; }

  // Never empty, and wide enough that ticks stay apart in float64.
  Range widened() const {
    if (low > high) return {0.0, 1.0};
    const double size = std::max(std::abs(low), std::abs(high));
    if (span() > std::max(1e-9 * size, 1e-290)) return *this;
    const double margin = size > 1e-280 ? 0.1 * size : 1.0;
    return {low - margin, high + margin};
  }
};

std::vector<Tick> log_ticks(const Range& range) {
  std::vector<Tick> ticks;
  if (range.span() < 0.5) {  // perhaps no power of ten within
    const Range values{std::pow(10.0, range.low), std::pow(10.0, range.high)};
    const Range wide = values.widened();
    for (const Tick& tick : linear_ticks(wide.low, wide.high)) {
      if (values.contains(tick.at)) ticks.push_back({std::log10(tick.at), tick.label});
    }
    return ticks;
  }
  const int stride = std::max(1, static_cast<int>(std::ceil(range.span() / 8.0)));
  for (int decade = static_cast<int>(std::floor(range.low)); decade <= range.high; ++decade) {
    if (decade % stride != 0) continue;
    for (const int leading : {1, 2, 5}) {
      if (leading > 1 && range.span() > 2.0) break;
      const double at = decade + std::log10(leading);
      if (!range.contains(at)) continue;
      ticks.push_back({at, fmt::format("{:g}", leading * std::pow(10.0, decade))});
    }
  }
  return ticks;
}

// The lowest and the highest point of each stretch, so that peaks survive.
Points thinned(const Points& points) {
  constexpr size_t kStretches = 300;
  if (points.size() <= 2 * kStretches) return points;
  const auto place = [&](size_t stretch) {
    return points.begin() + static_cast<std::ptrdiff_t>(stretch * points.size() / kStretches);
  };
  Points kept;
  for (size_t i = 0; i < kStretches; ++i) {
    auto [low, high] = std::minmax_element(
        place(i), place(i + 1), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (low != high) kept.push_back(*high);
  }
  return kept;
}

// Points that can be drawn, y as its exponent where the axis is logarithmic.
Points drawable(const Points& points, bool log_y) {
  constexpr double kLargest = 1e250;  // so that spans and margins stay finite
  Points kept;
  for (const auto& [x, y] : points) {
    if (!(std::abs(x) <= kLargest && std::abs(y) <= kLargest) || (log_y && y < 1.0 / kLargest))
      continue;
    kept.emplace_back(x, log_y ? std::log10(y) : y);
  }
  return thinned(kept);
}

std::string escaped(std::string_view text) {
  std::string xml;
  for (const char c : text) {
    switch (c) {
      case '&':
        xml += "&amp;";
        break;
      case '<':
        xml += "&lt;";
        break;
      case '>':
        xml += "&gt;";
        break;
      case '"':
        xml += "&quot;";
        break;
      case '\'':
        xml += "&#39;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) xml += c;  // XML has no place for the others
    }
  }
  return xml;
}

// SVG text that grows piece by piece.
class Svg {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The page, in the units of the SVG's own coordinates.
constexpr double kWidth = 600, kLeft = 64, kRight = 576;
constexpr double kTitleBaseline = 20, kLineHeight = 18, kPlotHeight = 230;

// Okabe and Ito's colours that show on light and on dark; then the same ones dashed.
constexpr std::array<const char*, 6> kColours{"#0072b2", "#d55e00", "#009e73",
                                              "#cc79a7", "#e69f00", "#56b4e9"};
std::string stroke(size_t series) {
  const char* dash = series < kColours.size() ? "" : " stroke-dasharray=\"6 3\"";
  return fmt::format("stroke=\"{}\"{}", kColours[series % kColours.size()], dash);
}

// Draws the names below the title, in rows; returns the baseline of the last.
double draw_legend(Svg& svg, const std::vector<Series>& series) {
  constexpr double kSwatch = 26, kCharacter = 7, kGap = 16;
  double x = kLeft;
  double y = kTitleBaseline;
  for (size_t i = 0; i < series.size(); ++i) {
    if (series[i].name.empty()) continue;
    const double width = kSwatch + kCharacter * static_cast<double>(series[i].name.size());
    if (y == kTitleBaseline || x + width > kRight) {
      x = kLeft;
      y += kLineHeight;
    }
    svg.add("<path d=\"M{:.1f} {:.1f}h20\" {} stroke-width=\"3\"/>\n", x, y - 4, stroke(i));
    svg.add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + kSwatch, y, escaped(series[i].name));
    x += width + kGap;
  }
  return y;
}

}  // namespace

std::vector<Tick> linear_ticks(double low, double high) {
  const double rough = (high - low) / 5.0;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double leading = rough / power;
  const double step = power * (leading <= 1.0   ? 1.0
                               : leading <= 2.0 ? 2.0
                               : leading <= 5.0 ? 5.0
                                                : 10.0);
  const double size = std::max(std::abs(low), std::abs(high));
  const int digits = std::clamp(static_cast<int>(std::log10(size / step)) + 2, 6, 15);
  std::vector<Tick> ticks;
  for (double i = std::ceil(low / step); i * step <= high; ++i) {
    const double value = i * step + 0.0;  // no "-0"
    ticks.push_back({value, fmt::format("{:.{}g}", value, digits)});
  }
  return ticks;
}

torch::Tensor heatmap(const torch::Tensor& density, int64_t size) {
  TORCH_CHECK(density.dim() == 2 && density.numel() > 0 && size > 0,
              "heatmap: values [rows, columns] and a size are wanted, not ", density.sizes());
  torch::Tensor values = density.detach().to(torch::kCPU, torch::kFloat64);
  values = at::where(values.isfinite(), values, torch::zeros_like(values)).clamp_min(0.0).flip(0);
  const auto to_unit = [](const torch::Tensor& x) {
    const double largest = x.max().item<double>();
    return largest > 0.0 ? x / largest : x;
  };
  // Each pixel is the mean of the cells it covers; scaled before too, so that the sum stays finite.
  values = at::adaptive_avg_pool2d(to_unit(values).unsqueeze(0).unsqueeze(0), {size, size});
  return coloured(to_unit(values.squeeze(0).squeeze(0)));
}

torch::Tensor scatter(const torch::Tensor& points, const Window& window, int64_t size) {
  TORCH_CHECK(points.dim() == 2 && points.size(1) == 2 && size > 0,
              "scatter: points [N, 2] and a size are wanted, not ", points.sizes());
  TORCH_CHECK(window.low < window.high, "scatter: the window is empty");
  const torch::Tensor list = points.detach().to(torch::kCPU, torch::kFloat64).contiguous();
  const auto point = list.accessor<double, 2>();
  torch::Tensor counts = torch::zeros({size, size}, torch::kFloat64);
  auto count = counts.accessor<double, 2>();
  const int64_t radius = std::max<int64_t>(1, size / 256);
  const auto pixel = [&](double fraction) {
    return std::min(size - 1, static_cast<int64_t>(fraction * static_cast<double>(size)));
  };
  for (int64_t i = 0; i < list.size(0); ++i) {
    const double across = (point[i][0] - window.low) / (window.high - window.low);
    const double up = (point[i][1] - window.low) / (window.high - window.low);
    if (!(across >= 0.0 && across <= 1.0 && up >= 0.0 && up <= 1.0)) continue;
    const int64_t column = pixel(across);
    const int64_t row = pixel(1.0 - up);
    for (int64_t y = std::max<int64_t>(0, row - radius); y <= std::min(size - 1, row + radius);
         ++y) {
      for (int64_t x = std::max<int64_t>(0, column - radius);
           x <= std::min(size - 1, column + radius); ++x) {
        const int64_t dx = x - column;
        const int64_t dy = y - row;
        if (dx * dx + dy * dy <= radius * radius) count[y][x] += 1.0;
      }
    }
  }
  // One dot is plainly seen; brightness then grows with the logarithm, so that crowds keep detail.
  constexpr double kOneDot = 0.4, kFewest = 8.0;
  const double most = std::max(kFewest, counts.max().item<double>());
  const torch::Tensor grown =
      kOneDot + (1.0 - kOneDot) / std::log(most) * counts.clamp_min(1.0).log();
  return coloured(at::where(counts > 0, grown, torch::zeros_like(counts)));
}

torch::Tensor beside(const std::vector<torch::Tensor>& pictures, int64_t gap) {
  TORCH_CHECK(!pictures.empty() && gap >= 0, "beside: no pictures");
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& picture : pictures) {
    TORCH_CHECK(picture.dim() == 3 && picture.size(2) == 3 &&
                    picture.scalar_type() == torch::kUInt8 &&
                    picture.size(0) == pictures.front().size(0),
                "beside: uint8 [height, width, 3] of one height is wanted, not ", picture.sizes());
    if (!parts.empty()) parts.push_back(torch::full({picture.size(0), gap, 3}, 255, torch::kUInt8));
    parts.push_back(picture.cpu());
  }
  return torch::cat(parts, 1);
}

std::string line_chart(const std::string& title, const std::string& x_label,
                       const std::vector<Series>& series, bool log_y) {
  std::vector<Points> lines;
  Range x_range;
  Range y_range;
  for (const Series& one : series) {
    lines.push_back(drawable(one.points, log_y));
    for (const auto& [x, y] : lines.back()) {
      x_range.add(x);
      y_range.add(y);
    }
  }
  const bool empty = x_range.low > x_range.high;
  x_range = x_range.widened();
  y_range = y_range.widened();
  const double margin = 0.04 * y_range.span();
  y_range = {y_range.low - margin, y_range.high + margin};

  Svg legend;
  const double top = draw_legend(legend, series) + 14.0;
  const double bottom = top + kPlotHeight;
  const double centre = (kLeft + kRight) / 2;
  Svg svg;
  svg.add(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "style=\"width:100%;height:auto;font:12px system-ui,sans-serif;fill:var(--ink,#222)\">\n",
      kWidth, bottom + 48);
  svg.add("<title>{}</title>\n", escaped(title));
  svg.add("<text x=\"{}\" y=\"{}\" font-size=\"15\" font-weight=\"600\">{}</text>\n", kLeft,
          kTitleBaseline, escaped(title));
  svg.add("{}", legend.text());
  const auto to_x = [&](double x) {
    return kLeft + (x - x_range.low) / x_range.span() * (kRight - kLeft);
  };
  const auto to_y = [&](double y) {
    return bottom - (y - y_range.low) / y_range.span() * (bottom - top);
  };

  for (const Tick& tick : linear_ticks(x_range.low, x_range.high)) {
    const double x = to_x(tick.at);
    svg.add("<path d=\"M{:.1f} {:.1f}V{:.1f}\" style=\"stroke:var(--grid,#ddd)\"/>\n", x, top,
            bottom);
    svg.add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x, bottom + 18,
            tick.label);
  }
  for (const Tick& tick : log_y ? log_ticks(y_range) : linear_ticks(y_range.low, y_range.high)) {
    const double y = to_y(tick.at);
    svg.add("<path d=\"M{} {:.1f}H{}\" style=\"stroke:var(--grid,#ddd)\"/>\n", kLeft, y, kRight);
    svg.add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 8, y + 4,
            tick.label);
  }
  svg.add("<path d=\"M{} {:.1f}V{}H{}\" fill=\"none\" style=\"stroke:var(--ink,#222)\"/>\n", kLeft,
          top, bottom, kRight);
  svg.add("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", centre, bottom + 38,
          escaped(x_label));

  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].size() == 1) {
      svg.add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n",
              to_x(lines[i][0].first), to_y(lines[i][0].second), kColours[i % kColours.size()]);
    } else if (!lines[i].empty()) {
      svg.add("<polyline fill=\"none\" {} stroke-width=\"1.8\" stroke-linejoin=\"round\" points=\"",
              stroke(i));
      for (const auto& [x, y] : lines[i]) svg.add("{:.1f},{:.1f} ", to_x(x), to_y(y));
      svg.add("\"/>\n");
    }
  }
  if (empty) {
    svg.add("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">no data</text>\n", centre,
            (top + bottom) / 2);
  }
  svg.add("</svg>\n");
  return svg.text();
}

}  // namespace ddaebm
