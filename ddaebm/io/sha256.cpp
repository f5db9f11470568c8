#include "ddaebm/io/sha256.h"

#include <stdexcept>

#include <openssl/evp.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddaebm {

Sha256 sha256(std::string_view bytes) {
  Sha256 digest{};
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("SHA-256 is not to be had");
  }
  return digest;
}

std::string hex(const Sha256& digest) { return fmt::format("{:02x}", fmt::join(digest, "")); }

}  // namespace ddaebm
