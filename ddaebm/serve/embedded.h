#pragma once

#include <string_view>

// Files of this folder that the program carries within itself; CMake makes them into strings.
namespace ddaebm::serve {

extern const std::string_view kPage;     // page.html with page.css and page.js in it
extern const std::string_view kOpenApi;  // openapi.json

}  // namespace ddaebm::serve
