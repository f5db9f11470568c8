#pragma once

#include <optional>
#include <string>

#include "ddaebm/serve/http.h"

// Who may ask the server.
namespace ddaebm::serve {

// Whether an address is reached from this machine alone: 127.x.y.z or ::1.
bool is_local(const std::string& address);

// The answer to one who may not ask; `token` is empty where none is asked for.
std::optional<Response> refuse_stranger(const Request& request, const std::string& token);

}  // namespace ddaebm::serve
