#include "ddaebm/data/decode.h"

#include <algorithm>
#include <limits>
#include <memory>

#include <png.h>
#include <turbojpeg.h>
#include <webp/decode.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr int64_t kMaxPixels = int64_t{64} << 20;
constexpr int64_t kChannels = 3;

const unsigned char* unsigned_bytes(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

bool is_jpeg(std::string_view bytes) { return bytes.starts_with("\xff\xd8\xff"); }
bool is_png(std::string_view bytes) { return bytes.starts_with("\x89PNG\r\n\x1a\n"); }
bool is_webp(std::string_view bytes) {
  return bytes.starts_with("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP";
}

// Room for a picture of that size, after a look at the size.
Picture blank(int64_t height, int64_t width) {
  if (height < 1 || width < 1) fail("a picture of {} x {} pixels", width, height);
  if (width > kMaxPixels / height) {
    fail("{} x {} pixels are more than 64 megapixels; scale it down", width, height);
  }
  return {height, width, std::vector<uint8_t>(static_cast<size_t>(height * width * kChannels))};
}

Picture decode_jpeg(std::string_view bytes) {
  const std::unique_ptr<void, decltype([](tjhandle h) { tjDestroy(h); })> jpeg(tjInitDecompress());
  if (!jpeg) fail("no memory to decode JPEG");
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = 0;
  int height = 0;
  int sampling = 0;
  int colours = 0;
  if (tjDecompressHeader3(jpeg.get(), unsigned_bytes(bytes), size, &width, &height, &sampling,
                          &colours) != 0) {
    fail("damaged JPEG: {}", tjGetErrorStr2(jpeg.get()));
  }
  if (colours == TJCS_CMYK || colours == TJCS_YCCK) {
    fail("JPEG in printing colours (CMYK); convert it to RGB");
  }
  Picture picture = blank(height, width);
  // A warning is an error here: a file that is cut short decodes to grey below the cut. The
  // accurate transform is what most other programs use.
  if (tjDecompress2(jpeg.get(), unsigned_bytes(bytes), size, picture.rgb.data(), width, 0, height,
                    TJPF_RGB, TJFLAG_ACCURATEDCT) != 0) {
    fail("damaged JPEG: {}", tjGetErrorStr2(jpeg.get()));
  }
  return picture;
}

Picture decode_png(std::string_view bytes) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, decltype([](png_image* p) { png_image_free(p); })> release(&png);
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    fail("damaged PNG: {}", png.message);
  }
  Picture picture = blank(png.height, png.width);
  // With transparency libpng would blend; colours as stored are wanted, so it is read and dropped.
  png.format = PNG_FORMAT_RGBA;
  std::vector<uint8_t> rgba(PNG_IMAGE_SIZE(png));
  if (png_image_finish_read(&png, nullptr, rgba.data(), 0, nullptr) == 0) {
    fail("damaged PNG: {}", png.message);
  }
  for (size_t from = 0, to = 0; from < rgba.size(); from += 4, to += kChannels) {
    std::copy_n(rgba.data() + from, kChannels, picture.rgb.data() + to);
  }
  return picture;
}

Picture decode_webp(std::string_view bytes) {
  int width = 0;
  int height = 0;
  if (WebPGetInfo(unsigned_bytes(bytes), bytes.size(), &width, &height) == 0) fail("damaged WebP");
  Picture picture = blank(height, width);
  if (WebPDecodeRGBInto(unsigned_bytes(bytes), bytes.size(), picture.rgb.data(), picture.rgb.size(),
                        width * static_cast<int>(kChannels)) == nullptr) {
    fail("damaged WebP, or cut short");
  }
  return picture;
}

}  // namespace

bool is_encoded_image(std::string_view bytes) {
  return is_jpeg(bytes) || is_png(bytes) || is_webp(bytes);
}

Picture decode_image(std::string_view bytes) {
  if (is_jpeg(bytes)) return decode_jpeg(bytes);
  if (is_png(bytes)) return decode_png(bytes);
  if (is_webp(bytes)) return decode_webp(bytes);
  fail("{}", bytes.empty() ? "empty" : "neither JPEG nor PNG nor WebP");
}

}  // namespace ddaebm
