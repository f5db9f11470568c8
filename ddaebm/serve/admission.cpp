#include "ddaebm/serve/admission.h"

#include <string_view>

#include <arpa/inet.h>
#include <openssl/crypto.h>

#include "ddaebm/io/sha256.h"

namespace ddaebm::serve {
namespace {

// Takes as long whatever differs: digests are of one length and compared to the end.
bool same_secret(const std::string& given, const std::string& wanted) {
  return CRYPTO_memcmp(sha256(given).data(), sha256(wanted).data(), sizeof(Sha256)) == 0;
}

// "127.0.0.1:8080" -> "127.0.0.1", "[::1]:80" -> "[::1]".
std::string without_port(const std::string& host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon == std::string::npos || (bracket != std::string::npos && colon < bracket)) return host;
  return host.substr(0, colon);
}

}  // namespace

bool is_local(const std::string& address) {
  in_addr v4{};
  if (::inet_pton(AF_INET, address.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return address == "::1" || address == "localhost";
}

std::optional<Response> refuse_stranger(const Request& request, const std::string& token) {
  // Pages of other sites may not use the browser of someone who can reach this server; where no
  // token guards it, neither by a name of theirs that they point here.
  if (token.empty()) {
    const std::string host = without_port(request.host);
    if (!host.empty() && host != "[::1]" && !is_local(host)) {
      return error_response(403, "this server answers for localhost only");
    }
  }
  if (!request.origin.empty() && request.origin != "http://" + request.host &&
      request.origin != "https://" + request.host) {
    return error_response(403, "requests from pages of other sites are not answered");
  }
  // The page holds no data, and asks for the token; whether the server lives is no secret.
  const bool open = request.path == "/" || request.path == "/healthz";
  if (token.empty() || open) return {};
  constexpr std::string_view kBearer = "Bearer ";
  const bool bears = request.authorization.starts_with(kBearer);
  const std::string given = bears ? request.authorization.substr(kBearer.size()) : "";
  if (same_secret(given, token)) return {};
  Response response = error_response(401, "send the header Authorization: Bearer TOKEN");
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace ddaebm::serve
