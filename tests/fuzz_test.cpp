// Every reader of foreign bytes on its corpus, as it is and damaged at random, DDAEBM_FUZZ_ROUNDS
// times a file. tests/fuzz/run does the same guided by coverage.
#include <cstdlib>
#include <random>

#include "fuzz/targets.h"
#include "http_client.h"
#include "image_fixtures.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/io/file.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

class Fuzz : public testing::TestWithParam<FuzzTarget> {};

std::string damaged(std::string bytes, std::mt19937_64& dice) {
  const auto place = [&] { return dice() % (bytes.size() + 1); };
  for (uint64_t n = dice() % 4; n > 0 && !bytes.empty(); --n) {
    switch (dice() % 5) {
      case 0:
        bytes[dice() % bytes.size()] = static_cast<char>(dice());
        break;
      case 1:
        bytes.resize(place());
        break;
      case 2:
        bytes.insert(place(), bytes.substr(place(), dice() % 64));
        break;
      case 3:
        bytes.erase(place(), dice() % 64);
        break;
      default: {  // a number that is too large for anything
        const size_t at = place();
        for (size_t i = at; i < std::min(at + 8, bytes.size()); ++i) bytes[i] = '\xff';
      }
    }
  }
  return bytes;
}

TEST_P(Fuzz, BytesOfAnyKindAreReadOrRefused) {
  const char* asked = std::getenv("DDAEBM_FUZZ_ROUNDS");
  const int rounds = asked == nullptr ? 150 : std::atoi(asked);
  std::mt19937_64 dice(6);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(DDAEBM_CORPUS) / GetParam().name)) {
    const std::string good = read_file(entry.path());
    fuzz(GetParam(), good);
    for (int i = 0; i < rounds; ++i) fuzz(GetParam(), damaged(good, dice));
    ++files;
  }
  EXPECT_GT(files, 0) << "no corpus";
  fuzz(GetParam(), "");
}

// Makes the corpora that are in the tree: --gtest_also_run_disabled_tests. Those of pickles are
// links to tests/golden_pickle.
TEST(Corpus, DISABLED_IsWritten) {
  const fs::path corpus = DDAEBM_CORPUS;
  const auto place = [&](const std::string& target, const std::string& name) {
    fs::create_directories(corpus / target);
    return corpus / target / name;
  };
  put_file(place("toml", "settings.toml"),
           "[train]\nflag = true\nwhole = 3\nnumber = 1e-3\ntext = \"a\\u00e9\"\nlist = [1, 2]\n"
           "[train]\nwhole=7");
  put_file(place("toml", "dotted.toml"), "train.number = inf # why\ntrain.list=[0x1_0,3]");
  put_file(place("csv", "header.csv"), "a,b\n1,2.5\n# none\n-3e4,nan\n\"7\",8\n");
  put_file(place("csv", "tabs.csv"), "1\t2\n3\t4\n");
  put_file(
      place("metrics", "metrics.jsonl"),
      "{\"iteration\":1,\"energy\":0.5,\"seconds\":1e-3}\n{\"iteration\":2,\"kl\":null}\n{\"it");
  Safetensors tensors;
  tensors.tensors["weight"] = torch::arange(6.0).view({2, 3});
  tensors.tensors["count"] = torch::ones({3}, torch::kLong);
  tensors.metadata["format"] = "ddaebm checkpoint 2";
  write_safetensors(place("safetensors", "plain"), tensors);
  write_safetensors(place("safetensors", "checksum"), tensors, /*with_checksum=*/true);
  write_npy(place("npy", "matrix"), torch::arange(6.0).view({2, 3}));
  write_npy(place("npy", "bytes"), picture(1, 2, 2).unsqueeze(0));
  write_npz(place("npz", "two"), {{"a", torch::arange(3)}, {"b", torch::ones({2, 2})}});
  put_file(place("idx", "plain"), idx_of(torch::arange(8).view({2, 2, 2}).to(torch::kUInt8)));
  write_gzip(place("idx", "gzipped"), idx_of(torch::arange(8).to(torch::kUInt8)));
  put_file(place("cifar_binary", "ten"),
           cifar_of(picture(2, 32, 32).unsqueeze(0), torch::ones({1, 1})));
  put_file(place("cifar_binary", "hundred"),
           cifar_of(picture(2, 32, 32).unsqueeze(0), torch::ones({1, 2})));
  put_file(place("image", "png"), png_of(picture(3)));
  put_file(place("image", "jpeg"), jpeg_of(picture(3, 16, 16)));
  put_file(place("image", "webp"), webp_of(picture(3)));
  write_archive(place("tar", "plain"), numbered_pngs(2));
  const TempDir folder;
  write_archive(folder.path() / "s.tar.gz", numbered_pngs(2));
  fs::copy_file(folder.path() / "s.tar.gz", place("tar", "gzipped"),
                fs::copy_options::overwrite_existing);
  write_archive(place("tar", "links"), {{"a.png", ""}}, "../../etc/passwd");
  write_lmdb(folder.path() / "lmdb", numbered_pngs(2));
  fs::copy_file(folder.path() / "lmdb" / "data.mdb", place("lmdb", "two"),
                fs::copy_options::overwrite_existing);
  const std::string rows = R"({"rows": [[0.5, -1e3], [2, 3.25]]})";
  const std::string sample =
      R"({"n": 3, "seed": 18446744073709551615, "format": "png", "path": true})";
  put_file(place("body", "rows"), rows);
  put_file(place("body", "sample"), sample);
  put_file(place("body", "npy"), format_npy("", torch::arange(4.0).view({2, 2})));
  put_file(place("body", "images"), format_npy("", picture(1, 4, 4).unsqueeze(0)));
  put_file(place("body", "png"), png_of(picture(3, 4, 4)));
  put_file(place("http", "get"), request_text("GET", "/?a=b%20c") + request_text("HEAD", "/token"));
  put_file(place("http", "post"),
           request_text("POST", "/v1/score", rows, "Origin: http://localhost\r\n") +
               request_text("POST", "/token", sample, "Authorization: Bearer a\r\n"));
  put_file(place("http", "continue"),
           request_text("POST", "/", "ab", "Expect: 100-continue\r\nConnection: close\r\n"));
  put_file(
      place("http", "chunks"),
      "POST / HTTP/1.0\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n");
}

INSTANTIATE_TEST_SUITE_P(Readers, Fuzz, testing::ValuesIn(fuzz_targets()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace ddaebm
