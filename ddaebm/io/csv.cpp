#include "ddaebm/io/csv.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Calls visit(position) for each character outside quotes; false where a quote is left open.
template <class Visit>
bool for_each_unquoted(std::string_view line, Visit visit) {
  bool within = false;  // a doubled quote leaves and enters again
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      within = !within;
    } else if (!within) {
      visit(i);
    }
  }
  return !within;
}

// Tab before semicolon before comma: a decimal comma must not pass for a separator.
char find_separator(std::string_view line) {
  bool tab = false;
  bool semicolon = false;
  for_each_unquoted(line, [&](size_t i) {
    tab = tab || line[i] == '\t';
    semicolon = semicolon || line[i] == ';';
  });
  return tab ? '\t' : semicolon ? ';' : ',';
}

// The line's cells without surrounding blanks and quotes; false where a quote is left open.
bool split(std::string_view line, char separator, std::vector<std::string_view>& cells) {
  cells.clear();
  const auto add = [&](size_t begin, size_t end) {
    std::string_view cell = trimmed(line.substr(begin, end - begin));
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = cell.substr(1, cell.size() - 2);
    }
    cells.push_back(cell);
  };
  size_t begin = 0;
  const bool closed = for_each_unquoted(line, [&](size_t i) {
    if (line[i] != separator) return;
    add(begin, i);
    begin = i + 1;
  });
  add(begin, line.size());
  return closed;
}

std::optional<double> parse_number(std::string_view cell) {
  cell = trimmed(cell);
  if (cell.size() > 1 && cell[0] == '+' && cell[1] != '-') cell.remove_prefix(1);
  double value = 0.0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc() || end != cell.data() + cell.size()) return std::nullopt;
  return value;
}

bool all_numbers(const std::vector<std::string_view>& cells) {
  return std::all_of(cells.begin(), cells.end(),
                     [](std::string_view cell) { return parse_number(cell).has_value(); });
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

}  // namespace

Csv read_csv(const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string file = read_file(path);
  std::string_view rest = file;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());

  Csv csv;
  std::vector<double> values;
  std::vector<std::string_view> cells;
  size_t columns = 0;  // 0 until the first line is met
  char separator = ',';
  for (size_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::string_view text = trimmed(line);
    if (text.empty() || text.front() == '#') continue;

    const bool first = columns == 0;
    if (first) separator = find_separator(line);
    if (!split(line, separator, cells)) fail("{}: line {}: a quote is left open", where, number);
    if (first) columns = cells.size();
    if (cells.size() != columns) {
      fail("{}: line {}: {} cells, the lines before have {}", where, number, cells.size(), columns);
    }
    for (size_t i = 0; i < columns; ++i) {
      if (cells[i].empty()) fail("{}: line {}, column {}: the cell is empty", where, number, i + 1);
    }
    if (first && !all_numbers(cells)) {
      for (const std::string_view cell : cells) {
        csv.names.push_back(replaced(std::string(cell), "\"\"", "\""));
      }
      continue;
    }
    for (size_t i = 0; i < columns; ++i) {
      const auto value = parse_number(cells[i]);
      if (!value) {
        fail("{}: line {}, column {}: {} is not a number that float64 holds", where, number, i + 1,
             excerpt(cells[i]));
      }
      values.push_back(*value);
    }
  }
  if (values.empty()) fail("{}: no rows of numbers", where);
  const auto width = static_cast<int64_t>(columns);
  csv.rows = torch::from_blob(values.data(), {static_cast<int64_t>(values.size()) / width, width},
                              torch::kFloat64)
                 .clone();
  return csv;
}

void write_csv(const std::filesystem::path& path, const Csv& csv) {
  TORCH_CHECK(csv.rows.dim() == 2 && csv.rows.size(1) > 0,
              "write_csv: rows [N, D] are wanted, not ", csv.rows.sizes());
  const torch::Tensor rows = packed(csv.rows.to(torch::kFloat64));
  const auto columns = static_cast<size_t>(rows.size(1));
  TORCH_CHECK(csv.names.empty() || csv.names.size() == columns, "write_csv: ", csv.names.size(),
              " names for ", columns, " columns");
  if (!csv.names.empty() && all_numbers({csv.names.begin(), csv.names.end()})) {
    fail("{}: columns named by numbers alone would be read as a row", path.string());
  }

  std::string text;
  for (size_t i = 0; i < csv.names.size(); ++i) {
    const std::string& name = csv.names[i];
    if (trimmed(name).empty() || name.find('\n') != std::string::npos) {
      fail("{}: column {} needs a name of one line, not {}", path.string(), i + 1, excerpt(name));
    }
    const bool plain = name.find_first_of(",;\t\"#") == std::string::npos && trimmed(name) == name;
    text += i > 0 ? "," : "";
    text += plain ? name : '"' + replaced(name, "\"", "\"\"") + '"';
  }
  if (!text.empty()) text += '\n';

  const double* values = rows.data_ptr<double>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const bool last = static_cast<size_t>(i) % columns == columns - 1;
    fmt::format_to(std::back_inserter(text), "{}{}", values[i], last ? '\n' : ',');
  }
  write_file(path, text);
}

}  // namespace ddaebm
