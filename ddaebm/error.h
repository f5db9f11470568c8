#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>  // fmt::join

namespace ddaebm {

// What a user can mend: says what was found, what was wanted, and what to do. The command line
// prints it on one line and exits with 2. Anything else that is thrown is a bug.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error with a message as fmt::format makes it.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ddaebm
