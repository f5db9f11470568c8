// Every format of images, sound and damaged.

#include "ddaebm/data/images.h"

#include <functional>

#include "image_fixtures.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/data/decode.h"
#include "ddaebm/data/records.h"
#include "ddaebm/error.h"
#include "ddaebm/io/npy.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

class ImagesTest : public ::testing::Test {
 protected:
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  DataConfig config(const std::string& name) const {
    DataConfig c;
    c.name = path(name).string();
    return c;
  }
  Images read(const DataConfig& c, Split split = Split::train) {
    ReadHooks hooks;
    hooks.warn = [this](const std::string& text) { warnings_.push_back(text); };
    return read_images(c, split, hooks);
  }
  Images read(const std::string& name, Split split = Split::train) {
    return read(config(name), split);
  }
  // The message of the Error, which holds each of `parts` and is one line.
  void expect_error(const std::function<void()>& action, const std::vector<std::string>& parts) {
    try {
      action();
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
      for (const auto& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
      }
    }
  }
  void expect_pictures(const torch::Tensor& pixels, const std::vector<int64_t>& numbers) {
    ASSERT_EQ(pixels.size(0), static_cast<int64_t>(numbers.size()));
    ASSERT_EQ(pixels.scalar_type(), torch::kUInt8);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const auto found = pixels[static_cast<int64_t>(i)];
      EXPECT_TRUE(found.equal(picture(numbers[i], found.size(1), found.size(2)))) << i;
    }
  }

  TempDir folder_;
  std::vector<std::string> warnings_;
};

TEST_F(ImagesTest, DecodesEveryFormat) {
  const auto wanted = picture(3, 9, 13);
  const auto decoded = [](const std::string& bytes) {
    Picture p = decode_image(bytes);
    return torch::from_blob(p.rgb.data(), {p.height, p.width, 3}, torch::kUInt8)
        .permute({2, 0, 1})
        .clone();
  };
  EXPECT_TRUE(decoded(png_of(wanted)).equal(wanted));
  EXPECT_TRUE(decoded(webp_of(wanted)).equal(wanted));
  const auto smooth = torch::arange(16 * 16).view({1, 16, 16}).expand({3, 16, 16}).div(2, "floor");
  const auto jpeg = decoded(jpeg_of(smooth.to(torch::kUInt8)));
  EXPECT_LE((jpeg.to(torch::kLong) - smooth).abs().max().item<int64_t>(), 4);
}

TEST_F(ImagesTest, PicturesCutShortDoNotDecode) {
  const auto p = picture(1, 40, 40);
  for (const auto& whole : {png_of(p), jpeg_of(p), webp_of(p)}) {
    for (const double share : {0.0, 0.01, 0.3, 0.6, 0.9}) {
      const auto cut = static_cast<size_t>(static_cast<double>(whole.size()) * share);
      EXPECT_THROW(decode_image(whole.substr(0, cut)), Error) << whole.substr(1, 3) << share;
    }
  }
}

TEST_F(ImagesTest, DamagedPicturesNeverCrash) {
  for (const auto& whole : {png_of(picture(1)), jpeg_of(picture(1)), webp_of(picture(1))}) {
    for (size_t i = 0; i < whole.size(); ++i) {
      for (const char byte : {'\0', '\x7f', '\xff'}) {
        std::string damaged = whole;
        damaged[i] = byte;
        try {
          decode_image(damaged);
        } catch (const Error&) {
        }
      }
    }
  }
  // A size that nobody can hold is refused before memory is asked for.
  std::string huge = png_of(picture(1));
  huge.replace(16, 8, std::string("\x7f\xff\xff\xff\x7f\xff\xff\xff", 8));
  EXPECT_THROW(decode_image(huge), Error);
}

TEST_F(ImagesTest, FolderIsReadInOrderOfPaths) {
  write_folder(path("set"), {{"b/1.PNG", png_of(picture(2))},
                             {"a.webp", webp_of(picture(0))},
                             {"b/0.png", png_of(picture(1))},
                             {"notes.txt", "no picture"}});
  expect_pictures(read("set").pixels, {0, 1, 2});
  EXPECT_FALSE(read("set").labels.defined());
  auto limited = config("set");
  limited.limit = 2;
  expect_pictures(read(limited).pixels, {0, 1});
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ImagesTest, ProgressReachesTheEnd) {
  write_folder(path("set"), numbered_pngs(30));
  ReadHooks hooks;
  int64_t last = 0;
  hooks.progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 30);
    EXPECT_GE(done, last);
    last = done;
  };
  read_images(config("set"), Split::train, hooks);
  EXPECT_EQ(last, 30);
}

TEST_F(ImagesTest, PicturesThatDoNotDecodeAreNamedAndSkipped) {
  auto files = numbered_pngs(200);
  files[7].second = "no picture";
  files[0].second.resize(files[0].second.size() / 2);
  write_folder(path("set"), files);
  const auto pixels = read("set").pixels;
  ASSERT_EQ(pixels.size(0), 198);
  EXPECT_TRUE(pixels[0].equal(picture(1)));
  EXPECT_TRUE(pixels[6].equal(picture(8)));
  ASSERT_EQ(warnings_.size(), 3U);
  EXPECT_NE(warnings_[0].find("000.png"), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[1].find("007.png"), std::string::npos) << warnings_[1];
  EXPECT_NE(warnings_[2].find("2 of 200"), std::string::npos) << warnings_[2];
}

TEST_F(ImagesTest, MoreThanOneInAHundredIsAnError) {
  auto files = numbered_pngs(200);
  for (const size_t i : {20U, 21U, 150U}) files[i].second = "no picture";
  write_folder(path("set"), files);
  expect_error([&] { read("set"); }, {"1 %", "200", "neither JPEG nor PNG nor WebP", ".png"});
  write_folder(path("none"), {{"a.png", "x"}, {"b.png", "y"}});
  expect_error([&] { read("none"); }, {"a.png"});
  fs::create_directories(path("empty"));
  expect_error([&] { read("empty"); }, {"empty", "no images", ".png"});
}

TEST_F(ImagesTest, MixedSizesNameTwoFilesAndTheWayOut) {
  write_folder(path("set"),
               {{"a.png", png_of(picture(0, 8, 8))}, {"b.png", png_of(picture(1, 9, 12))}});
  expect_error([&] { read("set"); }, {"a.png", "8 x 8", "b.png", "12 x 9", "data.size"});
  auto sized = config("set");
  sized.size = 4;
  EXPECT_EQ(read(sized).pixels.sizes(), (std::vector<int64_t>{2, 3, 4, 4}));
}

TEST_F(ImagesTest, CropTakesTheEdgesAsGiven) {
  write_folder(path("set"), {{"a.png", png_of(picture(0, 12, 10))}});
  auto cropped = config("set");
  cropped.crop = {1, 2, 7, 11};
  EXPECT_TRUE(read(cropped).pixels[0].equal(
      picture(0, 12, 10).slice(1, 2, 11).slice(2, 1, 7).contiguous()));
  cropped.crop = {};
  EXPECT_EQ(read(cropped).pixels.size(2), 12);
  cropped.crop = {1, 2, 11, 11};
  expect_error([&] { read(cropped); }, {"a.png", "10 x 12", "data.crop", "11 x 11"});
  cropped.crop = {5, 2, 5, 11};
  expect_error([&] { read(cropped); }, {"data.crop", "left < right"});
  cropped.crop = {1, 2, 3};
  expect_error([&] { read(cropped); }, {"data.crop", "3 numbers"});
}

// Values from Pillow 9.4: Image.resize((8, 6), BILINEAR) of this picture, columns 1 to 6.
TEST_F(ImagesTest, ScalingIsPillowsAntialiasedBilinear) {
  const std::vector<int64_t> pillow = {
      52,  122, 152, 123, 138, 108, 95,  161, 112, 131, 111, 118, 144, 162, 105, 142, 123, 122,
      183, 121, 127, 110, 128, 115, 152, 87,  152, 125, 118, 123, 87,  119, 122, 125, 119, 124,
      102, 166, 117, 147, 137, 139, 145, 169, 101, 142, 135, 136, 180, 107, 125, 109, 141, 139,
      151, 84,  149, 120, 143, 132, 83,  121, 128, 122, 117, 128, 77,  163, 113, 131, 128, 131,
      152, 179, 101, 137, 121, 118, 186, 123, 128, 125, 127, 124, 170, 86,  153, 124, 137, 116,
      75,  118, 132, 134, 126, 126, 82,  162, 111, 131, 122, 127, 125, 172, 122, 122, 126, 128};
  const auto y = torch::arange(14).view({1, -1, 1});
  const auto x = torch::arange(20).view({1, 1, -1});
  const auto c = torch::arange(3).view({-1, 1, 1});
  const auto source = ((x * x * 3 + y * 17 + c * 50 + x * y) % 256).to(torch::kUInt8);
  write_folder(path("set"), {{"a.png", png_of(source)}});
  auto scaled = config("set");
  scaled.size = 6;
  const auto found = read(scaled).pixels[0].to(torch::kLong);
  const auto wanted = torch::tensor(pillow).view({3, 6, 6});
  EXPECT_LE((found - wanted).abs().max().item<int64_t>(), 1);
}

TEST_F(ImagesTest, LmdbIsReadInOrderOfKeys) {
  // Small values lie in leaf pages, large ones in pages of their own; enough for a branch page.
  NamedFiles values;
  for (int64_t i = 0; i < 300; ++i) {
    const bool large = i % 3 == 0;
    values.emplace_back(
        std::to_string(1000 + i),
        large ? png_of(torch::cat({picture(i), torch::randint(256, {3, 60, 8}, torch::kUInt8)}, 1)
                           .slice(1, 0, 8)) +
                    std::string(9000, 'x')
              : png_of(picture(i)));
  }
  write_lmdb(path("lmdb"), values);
  const auto pixels = read("lmdb").pixels;
  ASSERT_EQ(pixels.size(0), 300);
  for (int64_t i = 0; i < 300; ++i) EXPECT_TRUE(pixels[i].equal(picture(i))) << i;
  const auto set = open_images(config("lmdb"), Split::train, {});
  EXPECT_NE(set->files->name(5).find("[1005]"), std::string::npos);
}

TEST_F(ImagesTest, LsunFoldersAreSplits) {
  write_lmdb(path("lsun/church_outdoor_train_lmdb"), numbered_pngs(5));
  write_lmdb(path("lsun/church_outdoor_val_lmdb"), {{"k", png_of(picture(9))}});
  expect_pictures(read("lsun").pixels, {0, 1, 2, 3, 4});
  expect_pictures(read("lsun", Split::test).pixels, {9});
}

TEST_F(ImagesTest, LmdbWithoutImagesIsRefused) {
  write_lmdb(path("numbers"), {{"a", "1"}, {"b", "2"}});
  expect_error([&] { read("numbers"); }, {"numbers", "without images", "2 values"});
  write_lmdb(path("empty"), {});
  expect_error([&] { read("empty"); }, {"empty", "without images"});
  write_folder(path("other"), {{"data.mdb", std::string(9000, 'x')}});
  expect_error([&] { read("other"); }, {"data.mdb", "not an LMDB"});
}

TEST_F(ImagesTest, DamagedLmdbNeverCrashes) {
  NamedFiles values = numbered_pngs(40);
  values[3].second += std::string(9000, 'x');
  write_lmdb(path("lmdb"), values);
  const std::string whole = read_file(path("lmdb/data.mdb"));
  const auto attempt = [&](const std::string& bytes) {
    put_file(path("lmdb/data.mdb"), bytes);
    try {
      read("lmdb");
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  EXPECT_TRUE(attempt(whole));
  for (const size_t share : {1U, 3U, 5U, 7U})
    EXPECT_FALSE(attempt(whole.substr(0, whole.size() * share / 8)));
  expect_error([&] { read("lmdb"); }, {"data.mdb", "bytes", "cut short"});
  // Meta pages and the headers of the pages behind them.
  for (size_t page = 0; page < whole.size(); page += 4096) {
    for (size_t i = page; i < page + (page < 8192 ? 160 : 24); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ '\x55');
      attempt(damaged);
    }
  }
}

TEST_F(ImagesTest, TarShardsAreReadInOrder) {
  auto files = numbered_pngs(6);
  files.insert(files.begin() + 2, {"000.cls", "7"});
  // A name that takes a header of its own.
  files.emplace_back(std::string(150, 'd') + "/" + std::string(150, 'f') + ".webp",
                     webp_of(picture(6)));
  fs::create_directories(path("shards"));
  write_archive(path("shards/b.tar"), files);
  write_archive(path("shards/a.tar"), {{"x/9.jpeg", png_of(picture(9))}});
  expect_pictures(read("shards").pixels, {9, 0, 1, 2, 3, 4, 5, 6});
  expect_pictures(read("shards/b.tar").pixels, {0, 1, 2, 3, 4, 5, 6});
  write_archive(path("c.tar.gz"), files);
  expect_pictures(read("c.tar.gz").pixels, {0, 1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
  write_archive(path("texts.tar"), {{"a.txt", "x"}});
  expect_error([&] { read("texts.tar"); }, {"texts.tar", "no images"});
}

TEST_F(ImagesTest, CutShardGivesWhatIsWhole) {
  for (const std::string name : {"s.tar", "s.tar.gz"}) {
    SCOPED_TRACE(name);
    NamedFiles files;
    for (int64_t i = 0; i < 6; ++i) {
      // Noise, so that the compressed file is cut among pictures too.
      files.emplace_back(std::to_string(i) + ".png",
                         png_of(torch::randint(256, {3, 96, 96}, torch::kUInt8)));
    }
    write_archive(path(name), files);
    const auto all = read(name).pixels;
    ASSERT_EQ(all.size(0), 6);
    const std::string whole = read_file(path(name));
    put_file(path(name), whole.substr(0, whole.size() / 2));
    warnings_.clear();
    const auto some = read(name).pixels;
    EXPECT_GE(some.size(0), 1);
    EXPECT_LT(some.size(0), 6);
    EXPECT_TRUE(some.equal(all.slice(0, 0, some.size(0))));
    ASSERT_EQ(warnings_.size(), 1U);
    EXPECT_NE(warnings_[0].find(name), std::string::npos);
    EXPECT_NE(warnings_[0].find("cut"), std::string::npos) << warnings_[0];
    put_file(path(name), whole.substr(0, 300));
    expect_error([&] { read(name); }, {name, "300 bytes"});
  }
  // Cut between two members: only the end mark is missing.
  write_archive(path("m.tar"), numbered_pngs(2));
  const std::string whole = read_file(path("m.tar"));
  const size_t second = whole.find("001.png");
  put_file(path("m.tar"), whole.substr(0, second));
  warnings_.clear();
  expect_pictures(read("m.tar").pixels, {0});
  EXPECT_EQ(warnings_.size(), 1U);
}

TEST_F(ImagesTest, IdxPlainAndGzipped) {
  const auto pixels = torch::randint(256, {5, 4, 6}, torch::kUInt8);
  const auto labels = torch::tensor({3, 1, 4, 1, 5}).to(torch::kUInt8);
  fs::create_directories(path("mnist"));
  put_file(path("mnist/train-images-idx3-ubyte"), idx_of(pixels));
  put_file(path("mnist/train-labels-idx1-ubyte"), idx_of(labels));
  write_gzip(path("mnist/t10k-images-idx3-ubyte.gz"), idx_of(pixels.slice(0, 0, 2)));
  write_gzip(path("mnist/t10k-labels-idx1-ubyte.gz"), idx_of(labels.slice(0, 0, 2)));
  const auto train = read("mnist");
  EXPECT_TRUE(train.pixels.equal(pixels.unsqueeze(1)));
  EXPECT_TRUE(train.labels.equal(labels.to(torch::kLong)));
  const auto test = read("mnist", Split::test);
  EXPECT_TRUE(test.pixels.equal(pixels.slice(0, 0, 2).unsqueeze(1)));
  EXPECT_TRUE(test.labels.equal(labels.slice(0, 0, 2).to(torch::kLong)));
  EXPECT_TRUE(read("mnist/t10k-images-idx3-ubyte.gz").pixels.equal(test.pixels));
}

TEST_F(ImagesTest, DamagedIdxIsRefusedWithSizes) {
  const std::string whole = idx_of(torch::zeros({5, 4, 6}, torch::kUInt8));
  const auto refuse = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    put_file(path("x-ubyte"), bytes);
    expect_error([&] { read("x-ubyte"); }, parts);
  };
  refuse(whole.substr(0, whole.size() - 7), {"x-ubyte", "113", "120"});
  refuse(whole + "x", {"more data", "120"});
  refuse(whole.substr(0, 9), {"header", "cut short"});
  refuse("", {"not an IDX"});
  refuse("text", {"not an IDX"});
  std::string type = whole;
  type[2] = 13;
  refuse(type, {"type 13"});
  std::string huge = whole;
  huge[4] = '\x7f';
  huge[8] = '\x7f';
  refuse(huge, {"cut short"});
  write_gzip(path("g-ubyte.gz"), idx_of(torch::randint(256, {50, 40, 6}, torch::kUInt8)));
  const std::string gzip = read_file(path("g-ubyte.gz"));
  put_file(path("g-ubyte.gz"), gzip.substr(0, gzip.size() / 2));
  expect_error([&] { read("g-ubyte.gz"); }, {"g-ubyte.gz", "cut short", "12000"});
  std::string damaged = gzip;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // checksum
  put_file(path("g-ubyte.gz"), damaged);
  expect_error([&] { read("g-ubyte.gz"); }, {"g-ubyte.gz", "unpacked"});
}

TEST_F(ImagesTest, CifarBatches) {
  const auto pixels = torch::randint(256, {6, 3, 32, 32}, torch::kUInt8);
  const auto labels = torch::tensor({9, 0, 3, 3, 7, 1});
  fs::create_directories(path("set/cifar-10-batches-bin"));
  const auto batch = [&](const std::string& name, int64_t from, int64_t to) {
    put_file(path("set/cifar-10-batches-bin/" + name),
             cifar_of(pixels.slice(0, from, to), labels.slice(0, from, to)));
  };
  batch("data_batch_1.bin", 0, 2);
  batch("data_batch_2.bin", 2, 5);
  batch("test_batch.bin", 5, 6);
  const auto train = read("set");
  EXPECT_TRUE(train.pixels.equal(pixels.slice(0, 0, 5)));
  EXPECT_TRUE(train.labels.equal(labels.slice(0, 0, 5)));
  EXPECT_TRUE(read("set", Split::test).pixels.equal(pixels.slice(0, 5)));
  EXPECT_TRUE(
      read("set/cifar-10-batches-bin/data_batch_2.bin").pixels.equal(pixels.slice(0, 2, 5)));

  const auto two = torch::stack({labels, labels + 50}, 1);  // coarse, fine
  put_file(path("train.bin"), cifar_of(pixels, two));
  EXPECT_TRUE(read("train.bin").pixels.equal(pixels));
  EXPECT_TRUE(read("train.bin").labels.equal(labels + 50));

  const std::string whole = cifar_of(pixels, labels);
  put_file(path("cut.bin"), whole.substr(0, 3073 * 2 + 100));
  expect_error([&] { read("cut.bin"); }, {"cut.bin", "6246 bytes", "2 records", "100 over"});
  put_file(path("cut.bin"), "");
  expect_error([&] { read("cut.bin"); }, {"cut.bin", "0 bytes"});
}

TEST_F(ImagesTest, NpyInBothOrders) {
  const auto pixels = torch::randint(256, {4, 3, 6, 5}, torch::kUInt8);
  write_npy(path("a.npy"), pixels);
  write_npy(path("b.npy"), pixels.permute({0, 2, 3, 1}).contiguous());
  EXPECT_TRUE(read("a.npy").pixels.equal(pixels));
  EXPECT_TRUE(read("b.npy").pixels.equal(pixels));
  EXPECT_TRUE(is_image_data(path("a.npy").string()));
  write_npy(path("rows.npy"), torch::zeros({4, 3}));
  EXPECT_FALSE(is_image_data(path("rows.npy").string()));
  write_npy(path("odd.npy"), torch::zeros({4, 5, 6, 7}, torch::kUInt8));
  expect_error([&] { read("odd.npy"); }, {"odd.npy", "4 x 5 x 6 x 7", "[N, C, H, W]"});
}

TEST_F(ImagesTest, CelebaFollowsItsPartition) {
  write_folder(path("celeba/img_align_celeba"), numbered_pngs(5));
  put_file(path("celeba/list_eval_partition.txt"),
           "000.png 0\n001.png 1\n002.png 2\n003.png 0\n004.png 2\n");
  expect_pictures(read("celeba").pixels, {0, 3});
  expect_pictures(read("celeba", Split::test).pixels, {2, 4});
  put_file(path("celeba/list_eval_partition.txt"), "../secret 0\n");
  expect_error([&] { read("celeba"); }, {"list_eval_partition.txt:1"});
}

TEST_F(ImagesTest, NamedSetsAreLookedForUnderTheRoot) {
  DataConfig c;
  c.name = "cifar10";
  c.root = path("root").string();
  expect_error([&] { read(c); }, {"cifar10", c.root, "ddaebm data get cifar10", "data.root"});
  // A batch that is missing is noticed.
  fs::create_directories(path("root/cifar10"));
  put_file(path("root/cifar10/data_batch_1.bin"),
           cifar_of(torch::zeros({3, 3, 32, 32}, torch::kUInt8), torch::zeros({3})));
  expect_error([&] { read(c); }, {"cifar10", "3 training images", "50000"});
  expect_error([&] { read("nothing"); }, {"nothing", "no such file"});
  write_folder(path("set"), numbered_pngs(1));
  expect_error([&] { read("set", Split::test); }, {"no test images"});
}

TEST_F(ImagesTest, StacksAreThreeDigitsWithABorder) {
  const auto digits = torch::randint(1, 256, {50, 1, 28, 28}, torch::kUInt8);
  const auto table = stack_table(4000, 50, Split::train);
  EXPECT_TRUE(table.equal(stack_table(4000, 50, Split::train)));
  EXPECT_TRUE(table.slice(0, 0, 10).equal(stack_table(10, 50, Split::train)));
  EXPECT_FALSE(table.equal(stack_table(4000, 50, Split::test)));
  // Each of 50 digits is drawn 240 times on average, with a deviation of 15.
  const auto counts = torch::bincount(table.view(-1), {}, 50);
  EXPECT_GT(counts.min().item<int64_t>(), 160);
  EXPECT_LT(counts.max().item<int64_t>(), 320);
  const auto stacks = stack_digits(digits, table.slice(0, 0, 7));
  ASSERT_EQ(stacks.sizes(), (std::vector<int64_t>{7, 3, 32, 32}));
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t c = 0; c < 3; ++c) {
      const auto inside = stacks[i][c].slice(0, 2, 30).slice(1, 2, 30);
      EXPECT_TRUE(inside.equal(digits[table[i][c].item<int64_t>()][0]));
      EXPECT_EQ(stacks[i][c].sum().item<int64_t>(), inside.sum().item<int64_t>()) << "the border";
    }
  }
}

TEST_F(ImagesTest, GridPutsImagesInRows) {
  const auto images = torch::stack({picture(0, 4, 5), picture(1, 4, 5), picture(2, 4, 5)});
  const auto grid = image_grid(images, 2);
  ASSERT_EQ(grid.sizes(), (std::vector<int64_t>{4 + 2 + 4, 5 + 2 + 5, 3}));
  EXPECT_TRUE(grid.slice(0, 0, 4).slice(1, 7, 12).equal(picture(1, 4, 5).permute({1, 2, 0})));
  EXPECT_TRUE(grid.slice(0, 6, 10).slice(1, 0, 5).equal(picture(2, 4, 5).permute({1, 2, 0})));
  EXPECT_TRUE(grid.slice(0, 4, 6).eq(255).all().item<bool>());
  const auto grey = image_grid(torch::full({1, 1, 2, 2}, 7, torch::kUInt8), 8);
  EXPECT_TRUE(grey.equal(torch::full({2, 2, 3}, 7, torch::kUInt8)));
}

}  // namespace
}  // namespace ddaebm
