// The whole Inception network, imported from a state dict with batch norm, against the same network
// written out with plain tensors under torchvision's names.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "refusals.h"
#include "run_app.h"
#include "temp_dir.h"
#include <caffe2/serialize/inline_container.h>

#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/nn/functional/upsampling.h>
#include <torch/types.h>

#include "ddaebm/io/file.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/io/torch_checkpoint.h"
#include "ddaebm/metrics/fid.h"
#include "ddaebm/metrics/inception.h"
#include "ddaebm/metrics/inception_import.h"
#include "ddaebm/metrics/inception_score.h"

namespace ddaebm {
namespace {

using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

// Whoever walks through the network asks for a convolution by name and shape.
class Walk {
 public:
  virtual ~Walk() = default;
  virtual Tensor conv(const std::string& name, const Tensor& x, int64_t out,
                      std::vector<int64_t> kernel, int64_t stride,
                      std::vector<int64_t> padding) = 0;
};

// The network of pytorch-fid, up to the pooled features.
class Plain {
 public:
  explicit Plain(Walk& walk) : walk_(walk) {}

  Tensor features(Tensor x) {
    x = conv("Conv2d_1a_3x3", x, 32, 3, 3, 2, false);
    x = conv("Conv2d_2a_3x3", x, 32, 3, 3, 1, false);
    x = conv("Conv2d_2b_3x3", x, 64, 3, 3);
    x = torch::max_pool2d(x, 3, 2);
    x = conv("Conv2d_3b_1x1", x, 80, 1, 1);
    x = conv("Conv2d_4a_3x3", x, 192, 3, 3, 1, false);
    x = torch::max_pool2d(x, 3, 2);
    x = a("Mixed_5b.", x, 32);
    x = a("Mixed_5c.", x, 64);
    x = a("Mixed_5d.", x, 64);
    {
      const std::string m = "Mixed_6a.";
      auto y = conv(m + "branch3x3dbl_1", x, 64, 1, 1);
      y = conv(m + "branch3x3dbl_2", y, 96, 3, 3);
      y = conv(m + "branch3x3dbl_3", y, 96, 3, 3, 2, false);
      x = torch::cat({conv(m + "branch3x3", x, 384, 3, 3, 2, false), y, torch::max_pool2d(x, 3, 2)},
                     1);
    }
    x = c("Mixed_6b.", x, 128);
    x = c("Mixed_6c.", x, 160);
    x = c("Mixed_6d.", x, 160);
    x = c("Mixed_6e.", x, 192);
    {
      const std::string m = "Mixed_7a.";
      auto y = conv(m + "branch3x3_1", x, 192, 1, 1);
      y = conv(m + "branch3x3_2", y, 320, 3, 3, 2, false);
      auto z = conv(m + "branch7x7x3_1", x, 192, 1, 1);
      z = conv(m + "branch7x7x3_2", z, 192, 1, 7);
      z = conv(m + "branch7x7x3_3", z, 192, 7, 1);
      z = conv(m + "branch7x7x3_4", z, 192, 3, 3, 2, false);
      x = torch::cat({y, z, torch::max_pool2d(x, 3, 2)}, 1);
    }
    EXPECT_EQ(x.sizes().slice(1), at::IntArrayRef({1280, 8, 8}));
    x = e("Mixed_7b.", x, mean3(x));
    x = e("Mixed_7c.", x, torch::max_pool2d(x, 3, 1, 1));
    EXPECT_EQ(x.sizes().slice(1), at::IntArrayRef({2048, 8, 8}));
    return x.mean({2, 3});
  }

 private:
  Tensor conv(const std::string& name, const Tensor& x, int64_t out, int64_t height, int64_t width,
              int64_t stride = 1, bool padded = true) {
    return walk_.conv(
        name, x, out, {height, width}, stride,
        padded ? std::vector<int64_t>{height / 2, width / 2} : std::vector<int64_t>{0, 0});
  }

  // A mean of 3 x 3, of those that lie within the image.
  static Tensor mean3(const Tensor& x) {
    const auto ones = torch::ones_like(x);
    return torch::avg_pool2d(x, 3, 1, 1) / torch::avg_pool2d(ones, 3, 1, 1);
  }

  Tensor a(const std::string& m, const Tensor& x, int64_t pooled) {
    const auto y = conv(m + "branch5x5_2", conv(m + "branch5x5_1", x, 48, 1, 1), 64, 5, 5);
    auto z = conv(m + "branch3x3dbl_1", x, 64, 1, 1);
    z = conv(m + "branch3x3dbl_2", z, 96, 3, 3);
    z = conv(m + "branch3x3dbl_3", z, 96, 3, 3);
    return torch::cat(
        {conv(m + "branch1x1", x, 64, 1, 1), y, z, conv(m + "branch_pool", mean3(x), pooled, 1, 1)},
        1);
  }

  Tensor c(const std::string& m, const Tensor& x, int64_t inner) {
    auto y = conv(m + "branch7x7_1", x, inner, 1, 1);
    y = conv(m + "branch7x7_2", y, inner, 1, 7);
    y = conv(m + "branch7x7_3", y, 192, 7, 1);
    auto z = conv(m + "branch7x7dbl_1", x, inner, 1, 1);
    z = conv(m + "branch7x7dbl_2", z, inner, 7, 1);
    z = conv(m + "branch7x7dbl_3", z, inner, 1, 7);
    z = conv(m + "branch7x7dbl_4", z, inner, 7, 1);
    z = conv(m + "branch7x7dbl_5", z, 192, 1, 7);
    return torch::cat(
        {conv(m + "branch1x1", x, 192, 1, 1), y, z, conv(m + "branch_pool", mean3(x), 192, 1, 1)},
        1);
  }

  Tensor e(const std::string& m, const Tensor& x, const Tensor& pooled) {
    const auto y = conv(m + "branch3x3_1", x, 384, 1, 1);
    const auto z = conv(m + "branch3x3dbl_2", conv(m + "branch3x3dbl_1", x, 448, 1, 1), 384, 3, 3);
    return torch::cat(
        {conv(m + "branch1x1", x, 320, 1, 1), conv(m + "branch3x3_2a", y, 384, 1, 3),
         conv(m + "branch3x3_2b", y, 384, 3, 1), conv(m + "branch3x3dbl_3a", z, 384, 1, 3),
         conv(m + "branch3x3dbl_3b", z, 384, 3, 1), conv(m + "branch_pool", pooled, 192, 1, 1)},
        1);
  }

  Walk& walk_;
};

// Makes up each convolution and its batch norm on the way, and applies them one after the other.
class MakeUp : public Walk {
 public:
  Tensor conv(const std::string& name, const Tensor& x, int64_t out, std::vector<int64_t> kernel,
              int64_t stride, std::vector<int64_t> padding) override {
    const auto real = torch::kDouble;
    const double inputs = static_cast<double>(x.size(1) * kernel[0] * kernel[1]);
    const auto weight = torch::randn({out, x.size(1), kernel[0], kernel[1]}, real);
    state[name + ".conv.weight"] = weight.mul_(std::sqrt(2 / inputs));
    const auto gain = state[name + ".bn.weight"] = torch::rand({out}, real) + 0.5;
    const auto bias = state[name + ".bn.bias"] = torch::randn({out}, real) * 0.3;
    const auto mean = state[name + ".bn.running_mean"] = torch::randn({out}, real) * 0.3;
    const auto variance = state[name + ".bn.running_var"] = torch::rand({out}, real) + 0.5;
    state[name + ".bn.num_batches_tracked"] = torch::tensor(0);
    const auto y = torch::conv2d(x, weight, {}, stride, padding);
    return torch::batch_norm(y, gain, bias, mean, variance, /*training=*/false, 0.1, /*eps=*/1e-3,
                             /*cudnn_enabled=*/false)
        .relu();
  }

  Tensors state;
};

// Each tensor of the right shape but one number repeated, which is quick and takes no memory.
class OnlyShapes : public Walk {
 public:
  Tensor conv(const std::string& name, const Tensor& x, int64_t out, std::vector<int64_t> kernel,
              int64_t stride, std::vector<int64_t> padding) override {
    const auto value = [](double v, std::vector<int64_t> shape) {
      return torch::full({1}, v).expand(shape);
    };
    const double inputs = static_cast<double>(x.size(1) * kernel[0] * kernel[1]);
    state[name + ".conv.weight"] = value(1 / inputs, {out, x.size(1), kernel[0], kernel[1]});
    state[name + ".bn.weight"] = value(2, {out});
    state[name + ".bn.bias"] = value(0.5, {out});
    state[name + ".bn.running_mean"] = value(0.25, {out});
    state[name + ".bn.running_var"] = value(4 - 1e-3, {out});
    state[name + ".bn.num_batches_tracked"] = torch::tensor(0);
    const auto size = [&](int64_t i) {
      const auto k = static_cast<size_t>(i);
      return (x.size(2 + i) + 2 * padding[k] - kernel[k]) / stride + 1;
    };
    return torch::zeros({1}).expand({1, out, size(0), size(1)});
  }

  Tensors state;
};

Tensors plain_state() {
  OnlyShapes walk;
  Plain(walk).features(torch::zeros({1}).expand({1, 3, 299, 299}));
  walk.state["fc.weight"] = torch::full({1}, 0.125F).expand({1008, 2048});
  walk.state["fc.bias"] = torch::zeros({1}).expand({1008});
  return walk.state;
}

// As torch.save writes a state dict.
void save_state(const std::filesystem::path& path, const Tensors& state) {
  c10::Dict<std::string, Tensor> dict;
  for (const auto& [name, tensor] : state) dict.insert(name, tensor.contiguous());
  std::string pickle;
  torch::jit::Pickler pickler([&](const char* bytes, size_t n) { pickle.append(bytes, n); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(dict);
  pickler.stop();
  caffe2::serialize::PyTorchStreamWriter archive(path.string());
  archive.writeRecord("data.pkl", pickle.data(), pickle.size());
  int64_t key = 0;
  for (const auto& tensor : pickler.tensorData()) {
    archive.writeRecord("data/" + std::to_string(key++), tensor.data_ptr(), tensor.nbytes());
  }
  archive.writeEndOfFile();
}

Tensor some_images(int64_t n, int64_t side = 32) {
  torch::manual_seed(5);
  return torch::randint(0, 256, {n, 3, side, side}, torch::kByte);
}

Tensors up_to_mixed_7(Tensors tensors) {
  std::erase_if(tensors, [](const auto& entry) {
    const auto starts = [&](const char* with) { return entry.first.rfind(with, 0) == 0; };
    return starts("mixed_8") || starts("mixed_9") || starts("mixed_10") || starts("logits");
  });
  return tensors;
}

TEST(InceptionImport, FoldsAndNamesTheWholeNetwork) {
  namespace F = torch::nn::functional;
  const torch::NoGradGuard no_grad;
  const auto images = some_images(1, 40);
  const auto x = F::interpolate(images.to(torch::kDouble), F::InterpolateFuncOptions()
                                                               .size(std::vector<int64_t>{299, 299})
                                                               .mode(torch::kBilinear)
                                                               .align_corners(false));
  torch::manual_seed(1);
  MakeUp walk;
  const auto expected = Plain(walk).features(x / 127.5 - 1);
  const auto fc = walk.state["fc.weight"] = torch::randn({1008, 2048}, torch::kDouble) * 0.05;
  const auto bias = walk.state["fc.bias"] = torch::randn({1008}, torch::kDouble);

  const auto tensors = import_inception("state", walk.state);
  const Inception net("imported", tensors, torch::kDouble);
  EXPECT_EQ(net.width(), 2048);
  ASSERT_TRUE(net.has_logits());
  const auto found = net.features(images);
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_GT(expected.std().item<double>(), 0.01);  // there is something to get wrong
  EXPECT_LT((found - expected).abs().max().item<double>(),
            1e-10 * expected.abs().max().item<double>());
  const auto logits = expected.mm(fc.t()) + bias;
  EXPECT_LT((net.logits(found) - logits).abs().max().item<double>(),
            1e-10 * logits.abs().max().item<double>());

  // The same file without its end gives the features of mixed_7, and says so.
  const Inception start("partial", up_to_mixed_7(tensors), torch::kFloat);
  EXPECT_EQ(start.width(), 768);
  EXPECT_FALSE(start.has_logits());
  EXPECT_NE(start.settings(), net.settings());
  EXPECT_EQ(fid_name(start.width()), "fid768");
  EXPECT_EQ(fid_name(net.width()), "fid");
  // The classes do not change the features, nor what they are called.
  Tensors unclassed = tensors;
  unclassed.erase("logits.weight");
  unclassed.erase("logits.bias");
  const Inception headless("no classes", unclassed, torch::kFloat);
  EXPECT_FALSE(headless.has_logits());
  EXPECT_EQ(headless.settings(), net.settings());
  unclassed.erase("mixed_10_tower_1_mixed_conv_1.bias");
  EXPECT_NE(error_of([&] {
              Inception("cut", unclassed, torch::kFloat);
            }).find("cut: there is no tensor 'mixed_10_tower_1_mixed_conv_1.bias'"),
            std::string::npos);
}

TEST(InceptionImport, NamesWhatIsWrong) {
  const auto refusal = [](const Tensors& state) {
    return error_of([&] { import_inception("x.pth", state); });
  };
  const auto expect = [&](const Tensors& state, const std::string& part) {
    const auto text = refusal(state);
    EXPECT_EQ(text.rfind("x.pth: ", 0), 0U) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const auto good = plain_state();
  EXPECT_EQ(refusal(good), "no error");
  auto state = good;
  state.erase("Mixed_7c.branch3x3_2b.bn.running_var");
  expect(state, "no tensor 'Mixed_7c.branch3x3_2b.bn.running_var'");
  state = good;
  state["AuxLogits.conv0.conv.weight"] = torch::zeros({1});
  expect(state, "first 'AuxLogits.conv0.conv.weight'");
  state = good;
  state["fc.weight"] = torch::zeros({1000, 2048});
  expect(state, "torchvision's own");
  state = good;
  state["Conv2d_1a_3x3.bn.bias"] = torch::zeros({31});
  expect(state, "batch norm of [31]");
  state = good;
  state["Conv2d_1a_3x3.conv.weight"] = torch::zeros({32, 3, 5, 5});
  expect(state, "'conv.weight' is Float [32, 3, 5, 5]");
  state = good;
  state["Conv2d_1a_3x3.bn.running_var"] = torch::full({32}, -1.0F);
  expect(state, "not finite");
}

TEST(InceptionImport, IsACommandThatFidThenUses) {
  const TempDir folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  save_state(path("pt_inception.pth"), plain_state());
  const auto made = run_app({"import", path("pt_inception.pth"), "--out", path("net.safetensors")});
  ASSERT_EQ(made.code, 0) << made.err;
  const auto file = read_safetensors(path("net.safetensors"));
  // (w - .25) * 2 / sqrt(4) + .5
  EXPECT_NEAR(file.tensors.at("conv.weight")[3][1][2][0].item<double>(), 1.0 / 27, 1e-7);
  EXPECT_NEAR(file.tensors.at("mixed_10_conv.bias")[7].item<double>(), 0.25, 1e-7);
  EXPECT_EQ(file.tensors.at("logits.weight").sizes(), at::IntArrayRef({1008, 2048}));

  const auto fid = [&](const std::string& net, std::vector<std::string> words) {
    words.insert(words.begin(), {"fid", "--inception", path(net)});
    return run_app(words);
  };
  write_npy(path("images.npy"), some_images(6));
  const auto jpeg =
      fid("net.safetensors", {path("images.npy"), "--jpeg", "-n", "2", "--save", path("full.npz")});
  ASSERT_EQ(jpeg.code, 0) << jpeg.err;
  const auto statistics = read_statistics(path("full.npz"));
  EXPECT_EQ(statistics.count, 2);
  EXPECT_EQ(statistics.mean.size(0), 2048);
  EXPECT_NE(statistics.source.find("JPEG"), std::string::npos) << statistics.source;
  write_safetensors(path("partial.safetensors"), {up_to_mixed_7(file.tensors), {}});
  const auto refused = fid("partial.safetensors", {path("images.npy"), path("full.npz")});
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.err.find("2048 features"), std::string::npos) << refused.err;
}

TEST(FidCommand, TellsImagesSamplesAndStatisticsApart) {
  const TempDir folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  write_safetensors(path("net.safetensors"),
                    {up_to_mixed_7(import_inception("state", plain_state())), {}});
  const auto images = some_images(6);
  write_npy(path("images.npy"), images);
  write_npy(path("samples.npy"), images.to(torch::kFloat) / 127.5F - 1);
  const auto fid = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"fid", "--inception", path("net.safetensors")});
    return run_app(words);
  };
  const auto value = [](const std::string& text) {
    EXPECT_EQ(text.rfind("fid768 ", 0), 0U) << text;
    return std::stod(text.substr(7));
  };
  const auto saved = fid({path("images.npy"), path("samples.npy"), "--save", path("s.npz")});
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_EQ(saved.out.rfind("statistics of 6 images", 0), 0U) << saved.out;
  const auto numbers = saved.out.substr(saved.out.find('\n') + 1);
  EXPECT_LT(value(numbers), 1e-6);
  for (const char* word : {"kid ", "precision 1 ", "recall 1 "}) {
    EXPECT_NE(numbers.find(word), std::string::npos) << numbers;
  }
  const auto by_file = run_app({"fid", path("s.npz"), path("s.npz")});  // needs no network
  ASSERT_EQ(by_file.code, 0) << by_file.err;
  EXPECT_LT(value(by_file.out), 1e-6);
  EXPECT_EQ(by_file.out.find("kid"), std::string::npos) << by_file.out;
  const auto fewer = fid({path("images.npy"), path("s.npz"), "-n", "4"});
  ASSERT_EQ(fewer.code, 0) << fewer.err;
  EXPECT_GT(value(fewer.out), 1e-6);

  const auto refused = [&](const std::vector<std::string>& words, const char* part) {
    const auto result = fid(words);
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  refused({path("images.npy")}, "second set");
  refused({path("s.npz"), path("s.npz"), "--jpeg"}, "not images");
  refused({path("s.npz"), path("images.npy"), "--save", path("x.npz")}, "already");
  refused({path("absent"), path("s.npz")}, "neither images nor statistics");
  refused({path("images.npy"), "--save", path("s.csv")}, ".npz");
  write_npy(path("table.npy"), torch::zeros({3, 4}));
  refused({path("table.npy"), path("s.npz")}, "expected images");
}

TEST(InceptionScore, MeetsItsFormulaAndClosedForms) {
  torch::manual_seed(0);
  const auto logits = torch::randn({103, 7}, torch::kDouble) * 2;
  const auto direct = [](const Tensor& part) {
    const auto p = part.softmax(1);
    return ((p * (p.log() - p.mean(0, true).log())).sum(1).mean()).exp().item<double>();
  };
  EXPECT_NEAR(inception_score(logits, 1).mean, direct(logits), 1e-12);
  EXPECT_EQ(inception_score(logits, 1).std, 0);
  double mean = 0;
  double squares = 0;
  for (const auto& [first, last] : {std::pair(0, 25), {25, 51}, {51, 77}, {77, 103}}) {
    const double score = direct(logits.slice(0, first, last));
    mean += score / 4;
    squares += score * score / 4;
  }
  const auto parts = inception_score(logits, 4);
  EXPECT_NEAR(parts.mean, mean, 1e-12);
  EXPECT_NEAR(parts.std, std::sqrt(squares - mean * mean), 1e-9);
  // All images alike: 1. Every image sure of its class, classes even: as many as there are.
  EXPECT_NEAR(inception_score(logits.slice(0, 0, 1).expand({5000, 7}), 1).mean, 1, 1e-12);
  EXPECT_NEAR(inception_score(torch::eye(9).repeat({500, 1}) * 1e4, 1).mean, 9, 1e-9);
  EXPECT_NEAR(inception_score(torch::eye(9).repeat({500, 1}) * 1e4, 10).mean, 9, 1e-9);
  EXPECT_THROW(inception_score(logits.slice(0, 0, 3), 4), Error);
  EXPECT_THROW(inception_score(logits * NAN, 1), Error);
}

}  // namespace
}  // namespace ddaebm
