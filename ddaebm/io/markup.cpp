#include "ddaebm/io/markup.h"

#include <algorithm>

#include <fmt/format.h>

#include "ddaebm/io/image.h"

namespace ddaebm {

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8U | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= n ? kDigits[group >> (18U - 6U * k) & 63U] : '=';
    }
  }
  return out;
}

std::string figure(const std::vector<FigureColumn>& columns, int64_t panel) {
  constexpr int64_t kGap = 6;
  constexpr int64_t kLabel = 24;
  size_t rows = 0;
  for (const auto& column : columns) rows = std::max(rows, column.pictures.size());
  const auto place = [&](size_t i) { return static_cast<int64_t>(i) * (panel + kGap); };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
      "font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      place(columns.size()) - kGap, kLabel + place(rows) - kGap);
  for (size_t c = 0; c < columns.size(); ++c) {
    const auto& [label, pictures] = columns[c];
    out += fmt::format("<text x=\"{}\" y=\"16\" text-anchor=\"middle\">{}</text>\n",
                       place(c) + panel / 2, escape(label));
    for (size_t r = 0; r < pictures.size(); ++r) {
      if (!pictures[r].defined()) continue;
      out += fmt::format(
          "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" "
          "href=\"data:image/png;base64,{}\"/>\n",
          place(c), kLabel + place(r), panel, panel, base64(encode_png(pictures[r])));
    }
  }
  return out + "</svg>\n";
}

}  // namespace ddaebm
