#include "ddaebm/serve/sample_request.h"

#include <algorithm>
#include <random>

#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/markup.h"

namespace ddaebm::serve {
namespace {

constexpr int64_t kSamples = 10000;
constexpr int64_t kSampledNumbers = 1 << 20;
constexpr int64_t kPictured = 256;
constexpr size_t kSampleRequest = 4096;  // bytes

}  // namespace

SampleRequest parse_sample_request(const std::string& body, const Inputs& inputs,
                                   int64_t numbers_a_sample) {
  SampleRequest wanted;
  wanted.seed = std::random_device()();
  if (body.size() > kSampleRequest) fail("a request for samples takes {} bytes", kSampleRequest);
  if (!body.empty()) {
    const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) fail("expected a JSON object, such as {{\"n\": 16, \"seed\": 0}}");
    for (const auto& [key, value] : json.items()) {
      if (key == "n" && value.is_number_integer()) {
        wanted.n = value.is_number_unsigned() && value.get<uint64_t>() > kSamples
                       ? kSamples + 1
                       : value.get<int64_t>();
      } else if (key == "seed" && value.is_number_unsigned()) {
        wanted.seed = value.get<uint64_t>();
      } else if (key == "format" && value.is_string()) {
        wanted.format = value.get<std::string>();
      } else if (key == "path" && value.is_boolean()) {
        wanted.path = value.get<bool>();
      } else {
        fail("'{}' is not a key with such a value; known are n, seed, format, path",
             escape(key.substr(0, 40)));
      }
    }
  }
  const bool picture = wanted.format == "png";
  if (!picture && wanted.format != "json" && wanted.format != "npy") {
    fail("format: expected json, npy or png");
  }
  if (picture && inputs.image().empty()) fail("format png is for models of images");
  const int64_t most = std::min(picture ? kPictured : kSamples,
                                kSampledNumbers / std::max<int64_t>(1, numbers_a_sample));
  if (wanted.n < 1 || wanted.n > most) fail("n: expected 1 to {}", most);
  return wanted;
}

}  // namespace ddaebm::serve
