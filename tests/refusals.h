#pragma once

#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {

// What the Error says that `call` ends in.
template <class F>
std::string error_of(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Of a file that `parse` reads: every length short of the whole is an Error, and with any one byte
// changed it gives a result or an Error, nothing else.
template <class F>
void expect_survives_damage(const std::string& file, std::initializer_list<char> bytes,
                            const F& parse) {
  for (size_t i = 0; i < file.size(); ++i) {
    EXPECT_THROW(parse(file.substr(0, i)), Error);
    for (const char byte : bytes) {
      std::string damaged = file;
      damaged[i] = byte;
      EXPECT_NO_THROW(error_of([&] { parse(damaged); }));
    }
  }
}

}  // namespace ddaebm
