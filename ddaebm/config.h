#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace ddaebm {

// The values a number may take; printed in errors as "at least 1" or "more than 0".
struct Bounds {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_is_allowed = true;
};
// Bounds as settings name them.
inline Bounds at_least(double low) { return {.low = low}; }
inline Bounds more_than(double low) { return {.low = low, .low_is_allowed = false}; }
inline Bounds between(double low, double high) { return {.low = low, .high = high}; }

// An enumeration as a setting: its names in order, and access by index.
struct Choice {
  std::vector<std::string> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
};

// One setting: where it lives in a struct, its dotted key, and what it means.
struct Field {
  std::string key;
  std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*, Choice> value;
  Bounds bounds;
  std::string meaning;
};

// All settings of a run, in the order in which they are printed. A settings struct names each of
// its members once, in `visit(Fields&)`; reading, overriding, checking and printing follow from it.
class Fields {
 public:
  template <class T>
  void operator()(const char* name, T& value, Bounds bounds, const char* meaning) {
    list_.push_back({prefix_ + name, &value, bounds, meaning});
  }
  template <class T>
  void operator()(const char* name, T& value, const char* meaning) {
    (*this)(name, value, Bounds{}, meaning);
  }
  template <class E>
  void operator()(const char* name, E& value, std::initializer_list<const char*> names,
                  const char* meaning) {
    static_assert(std::is_enum_v<E>);
    list_.push_back({prefix_ + name,
                     Choice{{names.begin(), names.end()},
                            [&value] { return static_cast<size_t>(value); },
                            [&value](size_t i) { value = static_cast<E>(i); }},
                     Bounds{}, meaning});
  }
  template <class S>
  void section(const char* name, S& settings) {
    const std::string outer = std::exchange(prefix_, prefix_ + name + ".");
    settings.visit(*this);
    prefix_ = outer;
  }
  // A number that was a setting once. Files of older runs have it, and may as long as it is the one
  // at which it did nothing.
  void retired(const char* name, double neutral) { retired_[prefix_ + name] = neutral; }
  const std::vector<Field>& list() const { return list_; }
  const std::map<std::string, double>& retired() const { return retired_; }

 private:
  std::string prefix_;
  std::vector<Field> list_;
  std::map<std::string, double> retired_;
};

// A settings file and what `--set key=value` changes in it. Values keep the place they came from,
// so that an error names file and line.
class ConfigFile {
 public:
  // Parses TOML text; `name` stands in errors.
  static ConfigFile parse(const std::string& text, const std::string& name);
  ~ConfigFile();
  ConfigFile(ConfigFile&&) noexcept;
  ConfigFile& operator=(ConfigFile&&) noexcept;

  // `assignment` is key=value with a TOML value; a bare word counts as a string.
  void set(const std::string& assignment);
  // The text at a dotted key, or `fallback` where the file does not set it.
  std::string text(const std::string& key, const std::string& fallback) const;
  // Fills every field that the file sets. A key that no field has, a wrong type and a value out of
  // bounds are errors.
  void fill(const Fields& fields) const;

 private:
  struct Table;
  explicit ConfigFile(std::unique_ptr<Table> table);
  std::unique_ptr<Table> table_;
};

// A setting's value as TOML.
std::string value_text(const Field& field);

// Every setting with its value as TOML, its meaning as a comment; read back by ConfigFile.
std::string to_toml(const Fields& fields);

}  // namespace ddaebm
