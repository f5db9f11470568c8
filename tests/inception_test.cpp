#include "ddaebm/metrics/inception.h"

#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "temp_dir.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/error.h"
#include "ddaebm/io/safetensors.h"

namespace ddaebm {
namespace {

// Every convolution of a weight file: name, then the weight's shape.
constexpr const char* kConvolutions = R"(
conv 32 3 3 3  conv_1 32 32 3 3  conv_2 64 32 3 3  conv_3 80 64 1 1  conv_4 192 80 3 3
mixed_conv 64 192 1 1  mixed_tower_conv 48 192 1 1  mixed_tower_conv_1 64 48 5 5
mixed_tower_1_conv 64 192 1 1  mixed_tower_1_conv_1 96 64 3 3  mixed_tower_1_conv_2 96 96 3 3
mixed_tower_2_conv 32 192 1 1  mixed_1_conv 64 256 1 1  mixed_1_tower_conv 48 256 1 1
mixed_1_tower_conv_1 64 48 5 5  mixed_1_tower_1_conv 64 256 1 1  mixed_1_tower_1_conv_1 96 64 3 3
mixed_1_tower_1_conv_2 96 96 3 3  mixed_1_tower_2_conv 64 256 1 1  mixed_2_conv 64 288 1 1
mixed_2_tower_conv 48 288 1 1  mixed_2_tower_conv_1 64 48 5 5  mixed_2_tower_1_conv 64 288 1 1
mixed_2_tower_1_conv_1 96 64 3 3  mixed_2_tower_1_conv_2 96 96 3 3
mixed_2_tower_2_conv 64 288 1 1  mixed_3_conv 384 288 3 3  mixed_3_tower_conv 64 288 1 1
mixed_3_tower_conv_1 96 64 3 3  mixed_3_tower_conv_2 96 96 3 3  mixed_4_conv 192 768 1 1
mixed_4_tower_conv 128 768 1 1  mixed_4_tower_conv_1 128 128 1 7  mixed_4_tower_conv_2 192 128 7 1
mixed_4_tower_1_conv 128 768 1 1  mixed_4_tower_1_conv_1 128 128 7 1
mixed_4_tower_1_conv_2 128 128 1 7  mixed_4_tower_1_conv_3 128 128 7 1
mixed_4_tower_1_conv_4 192 128 1 7  mixed_4_tower_2_conv 192 768 1 1  mixed_5_conv 192 768 1 1
mixed_5_tower_conv 160 768 1 1  mixed_5_tower_conv_1 160 160 1 7  mixed_5_tower_conv_2 192 160 7 1
mixed_5_tower_1_conv 160 768 1 1  mixed_5_tower_1_conv_1 160 160 7 1
mixed_5_tower_1_conv_2 160 160 1 7  mixed_5_tower_1_conv_3 160 160 7 1
mixed_5_tower_1_conv_4 192 160 1 7  mixed_5_tower_2_conv 192 768 1 1  mixed_6_conv 192 768 1 1
mixed_6_tower_conv 160 768 1 1  mixed_6_tower_conv_1 160 160 1 7  mixed_6_tower_conv_2 192 160 7 1
mixed_6_tower_1_conv 160 768 1 1  mixed_6_tower_1_conv_1 160 160 7 1
mixed_6_tower_1_conv_2 160 160 1 7  mixed_6_tower_1_conv_3 160 160 7 1
mixed_6_tower_1_conv_4 192 160 1 7  mixed_6_tower_2_conv 192 768 1 1  mixed_7_conv 192 768 1 1
mixed_7_tower_conv 192 768 1 1  mixed_7_tower_conv_1 192 192 1 7  mixed_7_tower_conv_2 192 192 7 1
mixed_7_tower_1_conv 192 768 1 1  mixed_7_tower_1_conv_1 192 192 7 1
mixed_7_tower_1_conv_2 192 192 1 7  mixed_7_tower_1_conv_3 192 192 7 1
mixed_7_tower_1_conv_4 192 192 1 7  mixed_7_tower_2_conv 192 768 1 1)";

// All weights and biases 0.
Safetensors blank_weights() {
  Safetensors file;
  std::istringstream lines(kConvolutions);
  std::string name;
  int64_t out = 0;
  int64_t in = 0;
  int64_t height = 0;
  int64_t width = 0;
  while (lines >> name >> out >> in >> height >> width) {
    file.tensors[name + ".weight"] = torch::zeros({out, in, height, width}, torch::kHalf);
    file.tensors[name + ".bias"] = torch::zeros({out});
  }
  return file;
}

torch::Tensor constant_images(int64_t n, int64_t value, int64_t height = 32, int64_t width = 32) {
  return torch::full({n, 3, height, width}, value, torch::kByte);
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// With weights 0 a block gives its biases: the branches' order, ReLU, and the mean over space.
TEST(Inception, JoinsTheBranchesInOrder) {
  const TempDir folder;
  const auto path = folder.path() / "weights.safetensors";
  auto file = blank_weights();
  const std::vector<std::string> last = {"mixed_7_conv", "mixed_7_tower_conv_2",
                                         "mixed_7_tower_1_conv_4", "mixed_7_tower_2_conv"};
  torch::manual_seed(0);
  std::vector<torch::Tensor> biases;
  for (const auto& name : last) {
    biases.push_back(torch::randn({192}));
    file.tensors[name + ".bias"] = biases.back();
  }
  // Averages at the border exclude the padding, so a constant stays as it is.
  file.tensors["mixed_6_conv.bias"].fill_(3);
  file.tensors["mixed_7_tower_2_conv.weight"][5][7] = 1;
  biases[3] = biases[3].clone();
  biases[3][5] += 3;
  write_safetensors(path, file);
  const Inception net(path, torch::kDouble);
  EXPECT_EQ(net.width(), 768);
  const auto found = net.features(constant_images(1, 100));
  const auto expected = torch::cat(biases).relu().to(torch::kDouble).unsqueeze(0);
  EXPECT_EQ(found.scalar_type(), torch::kDouble);
  EXPECT_FALSE(found.requires_grad());
  EXPECT_LT((found - expected).abs().max().item<double>(), 1e-12);
}

// One channel led through the whole network shows what becomes of the pixels.
TEST(Inception, ScalesPixelsAndTakesAnyNumberAndSize) {
  const TempDir folder;
  const auto path = folder.path() / "weights.safetensors";
  auto file = blank_weights();
  const auto lead = [&](const std::string& name, int64_t from = 0) {
    auto weight = file.tensors.at(name + ".weight");
    weight[0][from][weight.size(2) / 2][weight.size(3) / 2] = 1;
  };
  for (const char* name : {"conv_1", "conv_2", "conv_3", "conv_4", "mixed_conv", "mixed_1_conv",
                           "mixed_2_conv", "mixed_5_conv", "mixed_6_conv", "mixed_7_conv"}) {
    lead(name);
  }
  lead("conv", 2);
  lead("mixed_4_conv", 384 + 96);  // mixed_3 pools its input, behind two branches
  write_safetensors(path, file);
  const Inception net(path, torch::kFloat);
  const auto value = [&](const torch::Tensor& images) { return net.features(images).select(1, 0); };
  EXPECT_NEAR(value(constant_images(1, 255)).item<double>(), 1, 1e-6);
  EXPECT_NEAR(value(constant_images(1, 204, 5, 40)).item<double>(), 0.6, 1e-6);
  EXPECT_EQ(value(constant_images(1, 51, 400, 300)).item<double>(), 0);  // -0.6, then ReLU
  auto blue = constant_images(11, 0, 1, 1);
  for (int64_t i = 0; i < 11; ++i) blue[i][2] = 155 + 10 * i;
  const auto expected = torch::arange(155, 256, 10) / 127.5 - 1;
  EXPECT_LT((value(blue) - expected).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(net.features(blue.narrow(0, 0, 0)).sizes(), at::IntArrayRef({0, 768}));
  EXPECT_THROW(net.features(blue.to(torch::kFloat)), c10::Error);
  EXPECT_THROW(net.features(blue.narrow(1, 0, 1)), c10::Error);
}

TEST(Inception, NamesWhatIsWrongWithItsWeights) {
  const TempDir folder;
  const auto path = folder.path() / "weights.safetensors";
  const auto refusal = [&](const Safetensors& file) {
    write_safetensors(path, file);
    return error_of([&] { Inception(path, torch::kFloat); });
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_EQ(text.rfind(path.string(), 0), 0U) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(refusal({}), "no tensor 'conv.weight'");
  Safetensors file;
  file.tensors = {{"conv.weight", torch::zeros({32, 3, 3, 4})}};
  expect(refusal(file), "'conv.weight' is Float [32, 3, 3, 4]; the network wants");
  file.tensors = {{"conv.weight", torch::zeros({32, 3, 3, 3}, torch::kLong)}};
  expect(refusal(file), "is Long");
  file.tensors = {{"conv.weight", torch::full({32, 3, 3, 3}, NAN)}};
  expect(refusal(file), "not finite");
  file = blank_weights();
  file.tensors["mixed_7_tower_3_conv.bias"] = torch::zeros({1});
  expect(refusal(file), "first 'mixed_7_tower_3_conv.bias'");
  // A start of the network's end has to be all of it.
  file = blank_weights();
  file.tensors["mixed_8_tower_conv.bias"] = torch::zeros({192});
  expect(refusal(file), "no tensor 'mixed_8_tower_conv.weight'");
}

TEST(Inception, SettingsTellWeightsApart) {
  const TempDir folder;
  const auto path = folder.path() / "weights.safetensors";
  auto file = blank_weights();
  write_safetensors(path, file);
  const auto first = Inception(path, torch::kFloat).settings();
  EXPECT_EQ(Inception(path, torch::kDouble).settings(), first);
  file.tensors["mixed_7_tower_2_conv.bias"][191] = 1e-3;
  write_safetensors(path, file);
  EXPECT_NE(Inception(path, torch::kFloat).settings(), first);
}

TEST(Inception, IsLookedForWhereItIsSaidToBe) {
  const TempDir folder;
  const auto touch = [&](const std::string& name) {
    std::filesystem::create_directories((folder.path() / name).parent_path());
    std::ofstream(folder.path() / name) << "x";
    return folder.path() / name;
  };
  const std::string file_name = "inception2015_to_mixed7.safetensors";
  const ScopedVariable home("HOME", folder.path() / "home");
  const ScopedVariable no_data("DDAEBM_DATA", "");
  const ScopedVariable no_file("DDAEBM_INCEPTION", "");
  EXPECT_FALSE(find_inception());
  const auto text = error_of([] { inception_path(); });
  EXPECT_NE(text.find(folder.path() / "home/.cache/ddaebm/inception2015.safetensors"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("DDAEBM_INCEPTION"), std::string::npos) << text;

  const auto cached = touch("home/.cache/ddaebm/" + file_name);
  EXPECT_EQ(find_inception(), cached);
  const ScopedVariable data("DDAEBM_DATA", folder.path() / "data");
  EXPECT_FALSE(find_inception());
  const auto in_data = touch("data/" + file_name);
  EXPECT_EQ(inception_path(), in_data);
  const auto whole = touch("data/inception2015.safetensors");
  EXPECT_EQ(inception_path(), whole);
  const ScopedVariable variable("DDAEBM_INCEPTION", folder.path() / "absent");
  EXPECT_FALSE(find_inception());
  EXPECT_NE(error_of([] { inception_path(); }).find("absent"), std::string::npos);
  const auto given = touch("given");
  EXPECT_EQ(inception_path(given), given);
  EXPECT_FALSE(find_inception(folder.path()));  // a folder is no file
}

}  // namespace
}  // namespace ddaebm
