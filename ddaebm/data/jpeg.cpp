#include "ddaebm/data/jpeg.h"

#include <memory>

#include <turbojpeg.h>

#include "ddaebm/data/decode.h"
#include "ddaebm/error.h"

namespace ddaebm {

torch::Tensor through_jpeg(const torch::Tensor& images) {
  TORCH_CHECK(images.dim() == 4 && images.size(1) == 3 && images.scalar_type() == torch::kByte,
              "JPEG of ", images.scalar_type(), " ", images.sizes(), ", uint8 [N, 3, H, W] wanted");
  constexpr int kQuality = 75;
  const std::unique_ptr<void, decltype([](tjhandle h) { tjDestroy(h); })> jpeg(tjInitCompress());
  if (!jpeg) fail("no memory to encode JPEG");
  const auto pixels = images.permute({0, 2, 3, 1}).contiguous();
  const auto height = static_cast<int>(pixels.size(1));
  const auto width = static_cast<int>(pixels.size(2));
  auto out = torch::empty_like(pixels);
  for (int64_t i = 0; i < pixels.size(0); ++i) {
    unsigned char* bytes = nullptr;
    unsigned long size = 0;
    const int failed =
        tjCompress2(jpeg.get(), pixels[i].data_ptr<uint8_t>(), width, 0, height, TJPF_RGB, &bytes,
                    &size, TJSAMP_420, kQuality, TJFLAG_ACCURATEDCT);
    const std::unique_ptr<unsigned char, decltype([](unsigned char* b) { tjFree(b); })> owned(
        bytes);
    if (failed != 0) fail("an image could not be encoded as JPEG: {}", tjGetErrorStr2(jpeg.get()));
    Picture picture = decode_image({reinterpret_cast<const char*>(bytes), size});
    out[i].copy_(torch::from_blob(picture.rgb.data(), {height, width, 3}, torch::kByte));
  }
  return out.permute({0, 3, 1, 2});
}

}  // namespace ddaebm
