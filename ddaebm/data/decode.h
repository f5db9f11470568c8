#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddaebm {

// A decoded picture, red green blue: grey is repeated, transparency dropped.
struct Picture {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> rgb;  // [height, width, 3]
};

// Whether bytes start as a JPEG, PNG or WebP file does.
bool is_encoded_image(std::string_view bytes);

// Decodes JPEG, PNG or WebP, told apart by content. An Error says why it cannot be done; the caller
// knows the picture's name. Pictures of more than 64 megapixels are refused before they are
// decoded, and so are those that are cut short.
Picture decode_image(std::string_view bytes);

}  // namespace ddaebm
