#include <nlohmann/json.hpp>

#include "ddaebm/serve/http.h"

namespace ddaebm::serve {

Response error_response(int status, const std::string& message) {
  const nlohmann::json json = {{"error", message}};
  // Parts of requests may be quoted that are not UTF-8.
  return {status, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

}  // namespace ddaebm::serve
