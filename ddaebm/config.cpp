#include "ddaebm/config.h"

#include <algorithm>
#include <set>

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// "25gaussians.toml:12", or "--set" for a value of the command line.
std::string place(const toml::node& node) {
  const auto& source = node.source();
  // A bare word of the command line has no source of its own.
  const std::string file = source.path ? *source.path : "--set";
  return file != "--set" ? fmt::format("{}:{}", file, source.begin.line) : file;
}

std::string shown(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& value) {
    out << toml::toml_formatter{value, toml::format_flags::none};
  });
  // Long lists and tables are broken into lines; a message is one.
  std::string text = out.str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr size_t kShown = 60;
  return text.size() > kShown ? text.substr(0, kShown) + "..." : text;
}

std::string describe(const Bounds& b) {
  const bool low = b.low > -std::numeric_limits<double>::infinity();
  const bool high = b.high < std::numeric_limits<double>::infinity();
  if (low && high) {
    return b.low_is_allowed ? fmt::format("between {} and {}", b.low, b.high)
                            : fmt::format("more than {} and at most {}", b.low, b.high);
  }
  if (low) return fmt::format("{} {}", b.low_is_allowed ? "at least" : "more than", b.low);
  return fmt::format("at most {}", b.high);
}

[[noreturn]] void reject(const toml::node& node, const std::string& key, const std::string& want) {
  fail("{}: '{}' is {}, it must be {}", place(node), key, shown(node), want);
}

void check_bounds(const toml::node& node, const Field& field, double value) {
  const Bounds& b = field.bounds;
  const bool low_ok = b.low_is_allowed ? value >= b.low : value > b.low;
  if (!std::isfinite(value)) reject(node, field.key, "a finite number");
  if (!low_ok || value > b.high) reject(node, field.key, describe(b));
}

void assign(const toml::node& node, const Field& field) {
  std::visit(
      Overloaded{[&](bool* out) {
                   if (!node.is_boolean()) reject(node, field.key, "true or false");
                   *out = node.as_boolean()->get();
                 },
                 [&](int64_t* out) {
                   if (!node.is_integer()) reject(node, field.key, "a whole number");
                   check_bounds(node, field, static_cast<double>(node.as_integer()->get()));
                   *out = node.as_integer()->get();
                 },
                 [&](double* out) {
                   if (!node.is_number()) reject(node, field.key, "a number");
                   const double value = *node.value<double>();
                   check_bounds(node, field, value);
                   *out = value;
                 },
                 [&](std::string* out) {
                   if (!node.is_string()) reject(node, field.key, "a text in quotes");
                   *out = node.as_string()->get();
                 },
                 [&](std::vector<int64_t>* out) {
                   const auto* array = node.as_array();
                   if (array == nullptr ||
                       (!array->empty() && !array->is_homogeneous(toml::node_type::integer))) {
                     reject(node, field.key, "a list of whole numbers, such as [300, 300]");
                   }
                   std::vector<int64_t> values;
                   for (const auto& item : *array) {
                     check_bounds(item, field, static_cast<double>(item.as_integer()->get()));
                     values.push_back(item.as_integer()->get());
                   }
                   *out = std::move(values);
                 },
                 [&](const Choice& choice) {
                   const auto* text = node.as_string();
                   const auto found = text == nullptr ? choice.names.end()
                                                      : std::find(choice.names.begin(),
                                                                  choice.names.end(), text->get());
                   if (found == choice.names.end()) {
                     reject(node, field.key,
                            fmt::format("one of {}", fmt::join(choice.names, ", ")));
                   }
                   choice.set(static_cast<size_t>(found - choice.names.begin()));
                 }},
      field.value);
}

// The known key that shares the most with a mistyped one, or nothing.
std::string nearest(const std::string& key, const Fields& fields) {
  const auto distance = [](const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= b.size(); ++j) {
        const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
      }
    }
    return row[b.size()];
  };
  std::string best;
  size_t best_distance = key.size() / 2 + 1;
  for (const Field& field : fields.list()) {
    const size_t d = distance(key, field.key);
    if (d < best_distance) {
      best_distance = d;
      best = field.key;
    }
  }
  return best;
}

}  // namespace

struct ConfigFile::Table {
  toml::table root;
};

ConfigFile::ConfigFile(std::unique_ptr<Table> table) : table_(std::move(table)) {}
ConfigFile::~ConfigFile() = default;
ConfigFile::ConfigFile(ConfigFile&&) noexcept = default;
ConfigFile& ConfigFile::operator=(ConfigFile&&) noexcept = default;

ConfigFile ConfigFile::parse(const std::string& text, const std::string& name) {
  try {
    return ConfigFile(std::make_unique<Table>(Table{toml::parse(text, name)}));
  } catch (const toml::parse_error& e) {
    fail("{}:{}: {}", name, e.source().begin.line, e.description());
  }
}

void ConfigFile::set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail("--set {}: expected key=value, such as --set train.lr=3e-4", assignment);
  }
  const std::string key = assignment.substr(0, equals);
  const std::string value = assignment.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + value, std::string("--set"));
  } catch (const toml::parse_error&) {
    // A bare word, such as kl or data.csv, is a text.
    parsed.insert("value", value);
  }
  toml::table* table = &table_->root;
  size_t from = 0;
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', from)) {
    const std::string part = key.substr(from, dot - from);
    if (table->get(part) == nullptr) table->insert(part, toml::table{});
    table = table->get(part)->as_table();
    if (table == nullptr) fail("--set {}: '{}' is a value, not a section", assignment, part);
    from = dot + 1;
  }
  const std::string last = key.substr(from);
  if (table->get(last) != nullptr && table->get(last)->is_table()) {
    fail("--set {}: '{}' is a section; set one of its keys, such as {}.NAME=value", assignment, key,
         key);
  }
  table->insert_or_assign(last, std::move(*parsed.get("value")));
}

std::string ConfigFile::text(const std::string& key, const std::string& fallback) const {
  const auto node = table_->root.at_path(key);
  if (!node) return fallback;
  if (!node.is_string()) reject(*node.node(), key, "a text in quotes");
  return node.as_string()->get();
}

void ConfigFile::fill(const Fields& fields) const {
  const std::function<void(const toml::table&, const std::string&)> walk =
      [&](const toml::table& table, const std::string& prefix) {
        for (const auto& [name, node] : table) {
          const std::string key = prefix + std::string(name.str());
          const auto& list = fields.list();
          const auto field =
              std::find_if(list.begin(), list.end(), [&](const Field& f) { return f.key == key; });
          const bool section = std::any_of(list.begin(), list.end(), [&](const Field& f) {
            return f.key.rfind(key + ".", 0) == 0;
          });
          if (const auto* inner = node.as_table(); inner != nullptr && field == list.end()) {
            walk(*inner, key + ".");
            if (section || !inner->empty()) continue;
          }
          if (section) {
            fail("{}: '{}' is a section; set its keys under [{}]", place(node), key, key);
          }
          if (field == list.end()) {
            const std::string guess = nearest(key, fields);
            fail("{}: unknown setting '{}'{}", place(node), key,
                 guess.empty() ? std::string("; `ddaebm settings` lists them all")
                               : fmt::format("; did you mean '{}'?", guess));
          }
          assign(node, *field);
        }
      };
  walk(table_->root, "");
}

std::string value_text(const Field& field) {
  // fmt prints the shortest text that reads back as the same number; TOML wants a point or an
  // exponent in it.
  const auto number = [](double v) {
    std::string text = fmt::format("{}", v);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  };
  const auto quoted = [](const std::string& s) {
    std::ostringstream out;
    out << toml::toml_formatter{toml::value<std::string>{s}, toml::format_flags::none};
    return out.str();
  };
  return std::visit(Overloaded{[](const bool* v) { return std::string(*v ? "true" : "false"); },
                               [](const int64_t* v) { return std::to_string(*v); },
                               [&](const double* v) { return number(*v); },
                               [&](const std::string* v) { return quoted(*v); },
                               [](const std::vector<int64_t>* v) {
                                 return fmt::format("[{}]", fmt::join(*v, ", "));
                               },
                               [&](const Choice& c) { return quoted(c.names.at(c.get())); }},
                    field.value);
}

std::string to_toml(const Fields& fields) {
  std::string out;
  std::string section;
  for (const Field& field : fields.list()) {
    const size_t dot = field.key.rfind('.');
    const std::string in = dot == std::string::npos ? "" : field.key.substr(0, dot);
    if (in != section) {
      out += fmt::format("\n[{}]\n", in);
      section = in;
    }
    const std::string line =
        fmt::format("{} = {}", dot == std::string::npos ? field.key : field.key.substr(dot + 1),
                    value_text(field));
    out += fmt::format("{:<36} # {}\n", line, field.meaning);
  }
  return out;
}

}  // namespace ddaebm
