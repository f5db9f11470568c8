#include "ddaebm/io/plot.h"

#include <cmath>
#include <limits>
#include <string_view>

#include <gtest/gtest.h>

namespace ddaebm {
namespace {

const double kInfinity = std::numeric_limits<double>::infinity();

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Well formed as far as counting goes, and without numbers that no renderer takes.
void expect_sound(const std::string& svg) {
  EXPECT_TRUE(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("role=\"img\""), std::string::npos);
  EXPECT_EQ(count(svg, "<text"), count(svg, "</text>"));
  EXPECT_EQ(count(svg, "<"), count(svg, ">"));
  EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
  EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
}

std::vector<uint8_t> pixel(const torch::Tensor& picture, int64_t row, int64_t column) {
  const torch::Tensor colour = picture[row][column].contiguous();
  return {colour.data_ptr<uint8_t>(), colour.data_ptr<uint8_t>() + 3};
}

double brightness(const torch::Tensor& picture, int64_t row, int64_t column) {
  return picture[row][column].to(torch::kFloat64).sum().item<double>();
}

const std::vector<uint8_t> kDarkest{68, 1, 84};
const std::vector<uint8_t> kBrightest{253, 231, 37};

TEST(Heatmap, BottomRowFirstAndLargestBrightest) {
  const torch::Tensor density = torch::tensor({{0.0, 4.0}, {1.0, 2.0}});
  for (const int64_t size : {2, 10}) {
    const torch::Tensor picture = heatmap(density, size);
    EXPECT_EQ(picture.sizes(), torch::IntArrayRef({size, size, 3}));
    EXPECT_EQ(pixel(picture, size - 1, 0), kDarkest);
    EXPECT_EQ(pixel(picture, size - 1, size - 1), kBrightest);
    EXPECT_LT(brightness(picture, 0, 0), brightness(picture, 0, size - 1));
  }
}

TEST(Heatmap, AveragesWhenItShrinks) {
  const torch::Tensor picture = heatmap(torch::tensor({{0.0, 4.0, 1.0, 1.0}}), 2);
  EXPECT_EQ(pixel(picture, 0, 0), kBrightest);
  EXPECT_EQ(pixel(picture, 0, 1), (std::vector<uint8_t>{33, 144, 140}));  // half as much
}

TEST(Heatmap, TakesAnyValues) {
  EXPECT_EQ(pixel(heatmap(torch::zeros({3, 3}), 4), 1, 1), kDarkest);
  const torch::Tensor odd =
      torch::tensor({{std::nan(""), kInfinity}, {-1.0, 1e308}}, torch::kFloat64);
  EXPECT_EQ(pixel(heatmap(odd, 2), 0, 1), kBrightest);
  EXPECT_EQ(pixel(heatmap(odd, 2), 1, 1), kDarkest);
  EXPECT_THROW(heatmap(torch::zeros({3}), 4), c10::Error);
}

TEST(Scatter, DrawsDotsWhereTheyAre) {
  const torch::Tensor points =
      torch::tensor({{-0.85, 0.85}, {0.85, -0.85}, {0.85, -0.85}, {5.0, 0.0}, {std::nan(""), 0.0}},
                    torch::kFloat64);
  const torch::Tensor picture = scatter(points, {-1.0, 1.0}, 20);
  EXPECT_EQ(pixel(picture, 10, 10), kDarkest);
  EXPECT_GT(brightness(picture, 1, 1), brightness(picture, 10, 10));
  EXPECT_GT(brightness(picture, 18, 18), brightness(picture, 1, 1));
}

TEST(Scatter, EdgesAndNoPoints) {
  const torch::Tensor corners = torch::tensor({{-1.0, -1.0}, {1.0, 1.0}}, torch::kFloat64);
  const torch::Tensor picture = scatter(corners, {-1.0, 1.0}, 20);
  EXPECT_NE(pixel(picture, 19, 0), kDarkest);
  EXPECT_NE(pixel(picture, 0, 19), kDarkest);
  EXPECT_EQ(pixel(scatter(torch::empty({0, 2}), {}, 5), 2, 2), kDarkest);
  EXPECT_THROW(scatter(corners, {1.0, 1.0}, 5), c10::Error);
}

TEST(Beside, JoinsWithAWhiteGap) {
  const torch::Tensor left = torch::zeros({4, 3, 3}, torch::kUInt8);
  const torch::Tensor right = torch::ones({4, 5, 3}, torch::kUInt8);
  const torch::Tensor joined = beside({left, right}, 2);
  EXPECT_EQ(joined.sizes(), torch::IntArrayRef({4, 10, 3}));
  EXPECT_EQ(pixel(joined, 0, 3), (std::vector<uint8_t>{255, 255, 255}));
  EXPECT_EQ(pixel(joined, 3, 5), (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_TRUE(beside({left}).equal(left));
  EXPECT_THROW(beside({left, torch::zeros({5, 3, 3}, torch::kUInt8)}), c10::Error);
}

TEST(LineChart, DrawsLinesTicksAndLegend) {
  const std::string svg = line_chart(
      "Loss", "iteration", {{"one", {{0, 0}, {10, 1}}}, {"two", {{0, 1}, {5, 0.5}, {10, 0}}}});
  expect_sound(svg);
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_EQ(count(svg, "<title>Loss</title>"), 1);
  for (const char* text : {">one<", ">two<", ">iteration<", ">0<", ">2<", ">10<", ">0.5<", ">1<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text;
  }
}

TEST(LineChart, EscapesText) {
  const std::string svg = line_chart("a<b & \"c\"", "x>\x01y", {{"<script>", {{0, 0}, {1, 1}}}});
  expect_sound(svg);
  EXPECT_EQ(svg.find("<script>"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b &amp; &quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("x&gt;y"), std::string::npos);
}

TEST(LineChart, LogAxisHasDecadesAndLeavesOutWhatItCannotShow) {
  const std::string svg =
      line_chart("t", "x", {{"a", {{0, 1e-3}, {1, 0.0}, {2, -5.0}, {3, 1e3}}}}, true);
  expect_sound(svg);
  for (const char* text : {">0.001<", ">0.1<", ">1<", ">1000<"}) {
    EXPECT_NE(svg.find(text), std::string::npos) << text << svg;
  }
  EXPECT_NE(line_chart("t", "x", {{"a", {{0, 3.0}, {1, 30.0}}}}, true).find(">5<"),
            std::string::npos);
}

TEST(LineChart, TakesAnyPoints) {
  using Points = std::vector<std::pair<double, double>>;
  const double next_to_one = std::nextafter(1.0, 2.0);
  for (const Points& points :
       {Points{}, Points{{1, 2}}, Points{{0, 0}}, Points{{0, 7}, {1, 7}, {2, 7}},
        Points{{3, 1}, {3, 2}}, Points{{0, std::nan("")}, {kInfinity, 1}},
        Points{{0, -1e308}, {1, 1e308}}, Points{{0, -1e250}, {1, 1e250}},
        Points{{0, 5e-324}, {5e-324, 0}}, Points{{0, 1.0}, {1, next_to_one}},
        Points{{1.0, 1}, {next_to_one, 2}}, Points{{0, 1e-250}, {1, 1e250}},
        Points{{0, 1e15}, {1, 1e15 + 1}}, Points{{0, 1 + 1e-8}, {1, 1 + 2e-8}}}) {
    for (const bool log_y : {false, true}) {
      const std::string svg = line_chart("t", "x", {{"a", points}, {"", {}}}, log_y);
      expect_sound(svg);
      EXPECT_LT(svg.size(), 10'000);
    }
  }
  expect_sound(line_chart("t", "x", {}));
  EXPECT_NE(line_chart("t", "x", {}).find("no data"), std::string::npos);
  EXPECT_EQ(count(line_chart("t", "x", {{"a", {{1, 2}}}}), "<circle"), 1);
}

TEST(LineChart, ThinsLongSeriesButKeepsPeaks) {
  Series series{"long", {}};
  for (int i = 0; i < 100'000; ++i)
    series.points.emplace_back(i, i == 54'321 ? 100.0 : std::sin(i));
  const std::string svg = line_chart("t", "x", {series});
  expect_sound(svg);
  EXPECT_LT(svg.size(), 12'000);
  EXPECT_NE(svg.find(">100<"), std::string::npos);  // the axis reaches the peak
}

TEST(LineChart, ManySeriesWrapTheirLegend) {
  std::vector<Series> many;
  for (int i = 0; i < 40; ++i)
    many.push_back({"series number " + std::to_string(i), {{0, i}, {1, i}}});
  const std::string svg = line_chart("t", "x", many);
  expect_sound(svg);
  EXPECT_EQ(count(svg, "<polyline"), 40);
  EXPECT_NE(svg.find("stroke-dasharray"), std::string::npos);
}

}  // namespace
}  // namespace ddaebm
