#include "ddaebm/io/histogram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "ddaebm/io/plot.h"

namespace ddaebm {
namespace {

constexpr int64_t kBins = 120, kBinWidth = 7, kHeight = 300;
constexpr int64_t kMargin = 40, kLine = 24, kDot = 3;  // pixels; a dot is a glyph's smallest part
constexpr int64_t kAdvance = 4 * kDot;

using Colour = std::array<uint8_t, 3>;
constexpr Colour kInk{34, 34, 34};
// Those of the charts; the first one light, to fill with.
constexpr Colour kFill{156, 200, 226};
constexpr std::array<Colour, 6> kColours{
    {{0, 114, 178}, {213, 94, 0}, {0, 158, 115}, {204, 121, 167}, {230, 159, 0}, {86, 180, 233}}};

// Letters of 3 x 5 dots: an octal digit is a row, from the top.
constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-+.,:_/%()= ";
constexpr std::array<uint16_t, kLetters.size()> kGlyphs{
    075557, 026227, 071747, 071317, 055711, 074717, 074757, 071122, 075757, 075717,  // digits
    025755, 065656, 034443, 065556, 074647, 074644, 034553, 055755, 072227, 011152,  // A to J
    055655, 044447, 057755, 065555, 025552, 065644, 025563, 065655, 034216, 072222,  // K to T
    055557, 055552, 055775, 055255, 055222, 071247,                                  // U to Z
    000700, 002720, 000002, 000024, 002020, 000007, 011244, 051245, 012221, 042224, 007070, 000000};

class Canvas {
 public:
  Canvas(int64_t width, int64_t height)
      : picture_(torch::full({height, width, 3}, 255, torch::kUInt8)) {}

  // Pixels x .. x + width - 1 of rows y .. y + height - 1; what lies outside is not drawn.
  void fill(int64_t x, int64_t y, int64_t width, int64_t height, const Colour& colour) {
    auto pixel = picture_.accessor<uint8_t, 3>();
    for (int64_t i = std::max<int64_t>(y, 0); i < std::min(y + height, picture_.size(0)); ++i) {
      for (int64_t j = std::max<int64_t>(x, 0); j < std::min(x + width, picture_.size(1)); ++j) {
        for (int64_t c = 0; c < 3; ++c) pixel[i][j][c] = colour[static_cast<size_t>(c)];
      }
    }
  }

  // Capitals, with the top left corner at (x, y); characters without a glyph are left blank.
  void write(int64_t x, int64_t y, std::string_view text, const Colour& colour) {
    for (const char c : text) {
      const auto place = kLetters.find(static_cast<char>(std::toupper(static_cast<uint8_t>(c))));
      const unsigned glyph = place == kLetters.npos ? 0U : kGlyphs.at(place);
      for (int64_t dot = 0; dot < 15; ++dot) {
        if ((glyph >> static_cast<unsigned>(14 - dot) & 1U) == 0) continue;
        fill(x + dot % 3 * kDot, y + dot / 3 * kDot, kDot, kDot, colour);
      }
      x += kAdvance;
    }
  }

  torch::Tensor picture() const { return picture_; }

 private:
  torch::Tensor picture_;  // [height, width, 3]
};

struct Axis {
  double low = 0.0, high = 1.0;
  int64_t bin(double value) const {
    const double at = (value - low) / (high - low) * static_cast<double>(kBins);
    return static_cast<int64_t>(std::clamp(at, 0.0, static_cast<double>(kBins - 1)));
  }
};

Axis axis_of(const std::vector<NumberSet>& sets) {
  std::vector<double> ends;
  for (const auto& set : sets) {
    std::vector<double> values;
    std::copy_if(set.values.begin(), set.values.end(), std::back_inserter(values),
                 [](double value) { return std::isfinite(value); });
    if (values.empty()) continue;
    std::sort(values.begin(), values.end());
    const size_t cut = values.size() / 200;
    ends.push_back(values[cut]);
    ends.push_back(values[values.size() - 1 - cut]);
  }
  if (ends.empty()) return {};
  const auto [low, high] = std::minmax_element(ends.begin(), ends.end());
  const double margin =
      *high > *low ? 0.02 * (*high - *low) : std::max(1e-9, 0.01 * std::abs(*low));
  return {*low - margin, *high + margin};
}

// Share of the set in each bin.
std::vector<double> shares(const NumberSet& set, const Axis& axis) {
  std::vector<double> bins(kBins, 0.0);
  double total = 0;
  for (const double value : set.values) {
    if (std::isnan(value)) continue;
    ++bins[static_cast<size_t>(axis.bin(value))];
    ++total;
  }
  if (total == 0) return bins;
  for (double& bin : bins) bin /= total;
  return bins;
}

}  // namespace

std::vector<double> numbers_of(const torch::Tensor& scores) {
  const auto* first = scores.data_ptr<double>();
  return {first, first + scores.numel()};
}

torch::Tensor histograms(const std::vector<NumberSet>& sets) {
  const Axis axis = axis_of(sets);
  std::vector<std::vector<double>> all;
  double most = 0;
  for (const auto& set : sets) {
    all.push_back(shares(set, axis));
    most = std::max(most, *std::max_element(all.back().begin(), all.back().end()));
  }
  const auto rows = static_cast<int64_t>(sets.size());
  const int64_t top = kMargin / 2 + rows * kLine + kLine;
  const int64_t bottom = top + kHeight;
  Canvas canvas(kBins * kBinWidth + 2 * kMargin, bottom + 2 * kLine);
  const auto height = [&](double share) {
    return most > 0 ? std::lround(share / most * static_cast<double>(kHeight)) : 0;
  };
  for (size_t s = 0; s < sets.size(); ++s) {
    const Colour& colour = kColours[s % kColours.size()];
    const int64_t line = kMargin / 2 + static_cast<int64_t>(s) * kLine;
    canvas.fill(kMargin, line, 5 * kDot, 5 * kDot, s == 0 ? kFill : colour);
    canvas.write(kMargin + 8 * kDot, line, sets[s].name, kInk);
    int64_t before = 0;
    for (int64_t bin = 0; bin < kBins; ++bin) {
      const int64_t x = kMargin + bin * kBinWidth;
      const int64_t now = height(all[s][static_cast<size_t>(bin)]);
      if (s == 0) {
        canvas.fill(x, bottom - now, kBinWidth, now, kFill);
      } else {  // a step: the rise from the bin before, then the bin's top
        canvas.fill(x - 1, bottom - std::max(now, before), 2, std::abs(now - before) + 2, colour);
        canvas.fill(x, bottom - now, kBinWidth, 2, colour);
      }
      before = now;
    }
  }
  canvas.fill(kMargin, bottom, kBins * kBinWidth, 2, kInk);
  for (const Tick& tick : linear_ticks(axis.low, axis.high)) {
    const auto x = kMargin + std::lround((tick.at - axis.low) / (axis.high - axis.low) *
                                         static_cast<double>(kBins * kBinWidth));
    canvas.fill(x - 1, bottom, 2, 8, kInk);
    const auto width = static_cast<int64_t>(tick.label.size()) * kAdvance;
    canvas.write(x - width / 2, bottom + 14, tick.label, kInk);
  }
  return canvas.picture();
}

}  // namespace ddaebm
