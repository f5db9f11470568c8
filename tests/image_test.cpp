#include "ddaebm/io/image.h"

#include <fstream>

#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

torch::Tensor parse(const std::string& bytes) {
  const TempDir folder;
  std::ofstream(folder.path() / "file.png", std::ios::binary) << bytes;
  return read_png(folder.path() / "file.png");
}

torch::Tensor sample_picture() {
  return torch::arange(5 * 7 * 3).mul(2).to(torch::kUInt8).reshape({5, 7, 3});
}

TEST(Image, RoundTripIsExact) {
  const torch::Tensor picture = sample_picture();
  const TempDir folder;
  const auto path = folder.path() / "picture.png";
  write_png(path, picture);
  EXPECT_TRUE(read_png(path).equal(picture));
  const torch::Tensor turned = picture.transpose(0, 1);  // not contiguous
  EXPECT_TRUE(parse(encode_png(turned)).equal(turned));
}

// One grey pixel of value 128, made by hand.
TEST(Image, ReadsGreyAsColour) {
  const std::string png(
      "\211\120\116\107\015\012\032\012\000\000\000\015\111\110\104\122\000\000\000\001"
      "\000\000\000\001\010\000\000\000\000\072\176\233\125\000\000\000\012\111\104\101"
      "\124\170\234\143\150\000\000\000\202\000\201\167\315\162\266\000\000\000\000\111"
      "\105\116\104\256\102\140\202",
      67);
  EXPECT_TRUE(parse(png).equal(torch::full({1, 1, 3}, 128, torch::kUInt8)));
}

TEST(Image, RefusesWrongTensors) {
  EXPECT_THROW(encode_png(torch::zeros({4, 4, 3})), c10::Error);
  EXPECT_THROW(encode_png(torch::zeros({4, 4}, torch::kUInt8)), c10::Error);
  EXPECT_THROW(encode_png(torch::zeros({0, 4, 3}, torch::kUInt8)), c10::Error);
}

TEST(Image, RefusesHostileFiles) {
  EXPECT_THROW(parse(""), Error);
  EXPECT_THROW(parse("no picture"), Error);
  std::string png = encode_png(sample_picture());
  std::string large = png;
  const size_t width = 16;  // signature, then the length and name of the first chunk
  large.replace(width, 8, std::string("\0\0\x40\0\0\0\x40\0", 8));  // 16384 x 16384
  try {
    parse(large);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("16384 x 16384"), std::string::npos) << error.what();
  }
  std::string endless = png;
  endless[endless.find("IDAT") - 4] = '\x7f';
  EXPECT_THROW(parse(endless), Error);
}

TEST(Image, SurvivesDamage) {
  const std::string png = encode_png(sample_picture());
  for (size_t i = 0; i < png.size(); ++i) {
    EXPECT_THROW(parse(png.substr(0, i)), Error);
    for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
      std::string damaged = png;
      damaged[i] = byte;
      const auto try_to_parse = [&] {
        try {
          parse(damaged);
        } catch (const Error&) {
        }
      };
      EXPECT_NO_THROW(try_to_parse()) << i;
    }
  }
}

}  // namespace
}  // namespace ddaebm
