#include "ddaebm/error.h"
#include "ddaebm/serve/http.h"

namespace ddaebm::serve {

class HttpServer::Implementation {};

HttpServer::HttpServer(const HttpOptions&, HttpHandler&) {
  fail("this program was built without Boost; install libboost-dev and build it anew");
}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return 0; }

}  // namespace ddaebm::serve
