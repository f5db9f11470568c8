#include "ddaebm/data/image_source.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include <unistd.h>

#include "ddaebm/data/image_stream.h"
#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/sha256.h"

namespace ddaebm {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

Units identity_units(const std::vector<int64_t>& event) {
  return {torch::zeros(event, torch::kDouble), torch::ones(event, torch::kDouble)};
}

// Images for evaluation, decoded when they are first asked for.
class HeldOut {
 public:
  HeldOut(ImageSet set, std::vector<int64_t> which, const DataConfig& config, ReadHooks hooks)
      : set_(std::move(set)), which_(std::move(which)), config_(config), hooks_(std::move(hooks)) {}

  torch::Tensor draw(int64_t n, const std::vector<int64_t>& event, torch::Device device) {
    n = std::min(n, static_cast<int64_t>(which_.size()));
    if (!pixels_.defined() || asked_ < n) {
      pixels_ = load_images(set_, {which_.begin(), which_.begin() + n}, config_, hooks_).pixels;
      asked_ = n;
      if (pixels_.sizes().slice(1) != at::IntArrayRef(event)) {
        fail("{}: training images are {}, test images {}; set data.size", config_.name,
             fmt::join(event, " x "), fmt::join(pixels_.sizes().slice(1), " x "));
      }
    }
    return scaled(pixels_.slice(0, 0, std::min(n, pixels_.size(0))).to(device));
  }

 private:
  ImageSet set_;
  std::vector<int64_t> which_;
  DataConfig config_;
  ReadHooks hooks_;
  torch::Tensor pixels_;  // the first asked_ of them that decode
  int64_t asked_ = 0;
};

class ImageSource : public DataSource {
 public:
  ImageSource(const torch::Tensor& pixels, HeldOut held_out, bool flip, torch::Device device)
      : pixels_(pixels.to(device)), held_out_(std::move(held_out)), flip_(flip) {}

  std::vector<int64_t> event() const override { return pixels_.sizes().slice(1).vec(); }
  torch::Tensor draw(int64_t n, Random& random) override {
    auto batch = pixels_.index_select(0, random.integers(pixels_.size(0), {n}));
    if (flip_) {
      const auto mirrored = random.uniform({n, 1, 1, 1}, torch::kFloat) < 0.5;
      batch = torch::where(mirrored, batch.flip(3), batch);
    }
    return scaled(batch);
  }
  torch::Tensor draw_held_out(int64_t n, Random&) override {
    return held_out_.draw(n, event(), pixels_.device());
  }
  torch::Tensor training_images(int64_t n) override {
    return pixels_.slice(0, 0, std::min(n, pixels_.size(0))).to(torch::kCPU);
  }
  Units units() const override { return identity_units(event()); }
  std::string fingerprint() const override {
    // Of some thousand images.
    const auto some = pixels_.slice(0, 0, pixels_.size(0), pixels_.size(0) / 4096 + 1);
    return fmt::format("{} images {}", pixels_.size(0), hex(sha256(bytes_of(packed(some)))));
  }

 private:
  torch::Tensor pixels_;  // uint8 [N, C, H, W]
  HeldOut held_out_;
  bool flip_;
};

class StreamSource : public DataSource {
 public:
  // `first` reads the first n training images.
  StreamSource(std::unique_ptr<ImageStream> stream, HeldOut held_out,
               std::function<torch::Tensor(int64_t n)> first, std::vector<int64_t> event,
               torch::Device device, std::string fingerprint)
      : stream_(std::move(stream)),
        fingerprint_(std::move(fingerprint)),
        held_out_(std::move(held_out)),
        first_(std::move(first)),
        event_(std::move(event)),
        device_(device) {}

  std::vector<int64_t> event() const override { return event_; }
  void prepare(int64_t step, int64_t n) override {
    const auto pixels = stream_->take(step, n);
    // One tensor for all steps, as a captured step reads always the same memory.
    if (!batch_.defined() || batch_.size(0) != n) {
      batch_ = torch::empty(pixels.sizes(), torch::TensorOptions(torch::kUInt8).device(device_));
    }
    // LibTorch keeps pinned memory until the copy is done.
    batch_.copy_(pixels, /*non_blocking=*/true);
  }
  torch::Tensor draw(int64_t n, Random&) override {
    TORCH_CHECK(batch_.defined() && batch_.size(0) == n, "draw(", n, ") without prepare(step, ", n,
                ")");
    return scaled(batch_);
  }
  torch::Tensor draw_held_out(int64_t n, Random&) override {
    return held_out_.draw(n, event_, device_);
  }
  torch::Tensor training_images(int64_t n) override { return first_(n); }
  Units units() const override { return identity_units(event_); }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  std::unique_ptr<ImageStream> stream_;
  std::string fingerprint_;
  HeldOut held_out_;
  std::function<torch::Tensor(int64_t n)> first_;
  std::vector<int64_t> event_;
  torch::Device device_;
  torch::Tensor batch_;  // uint8 [n, C, H, W]
};

// StackedMNIST: the digits on the device and which of them each stack takes.
class StackedSource : public DataSource {
 public:
  StackedSource(const DataConfig& config, torch::Device device, const ReadHooks& hooks) {
    if (config.size != 0 && config.size != 32) {
      fail("stackedmnist: data.size is {}; the set is 32 x 32, leave it at 0", config.size);
    }
    DataConfig mnist = config;
    mnist.name = "mnist";
    mnist.limit = 0;
    mnist.size = 0;
    digits_ = read_images(mnist, Split::train, hooks).pixels.to(device);
    test_digits_ = read_images(mnist, Split::test, hooks).pixels.to(device);
    if (config.stacks == 0) return;
    const int64_t n = config.limit > 0 ? std::min(config.limit, config.stacks) : config.stacks;
    table_ = stack_table(n, digits_.size(0), Split::train).to(device);
  }

  std::vector<int64_t> event() const override { return {3, 32, 32}; }
  torch::Tensor draw(int64_t n, Random& random) override {
    const auto chosen = table_.defined()
                            ? table_.index_select(0, random.integers(table_.size(0), {n}))
                            : random.integers(digits_.size(0), {n, 3});
    return scaled(stack_digits(digits_, chosen));
  }
  torch::Tensor draw_held_out(int64_t n, Random& random) override {
    const auto chosen = random.integers(test_digits_.size(0), {n, 3}).to(test_digits_.device());
    return scaled(stack_digits(test_digits_, chosen));
  }
  torch::Tensor training_images(int64_t n) override {
    const auto table = table_.defined() ? table_.slice(0, 0, std::min(n, table_.size(0)))
                                        : stack_table(n, digits_.size(0), Split::train);
    return stack_digits(digits_, table.to(digits_.device())).to(torch::kCPU);
  }
  Units units() const override { return identity_units(event()); }

 private:
  torch::Tensor digits_, test_digits_;  // uint8 [N, 1, 28, 28]
  torch::Tensor table_;                 // int64 [stacks, 3]; undefined: stacks without end
};

// The shape of one image once it is framed, from the first picture that decodes.
std::vector<int64_t> shape_of(const ImageSet& set, const std::vector<int64_t>& which,
                              const DataConfig& config) {
  constexpr size_t kTries = 100;
  for (size_t i = 0; set.files && i < std::min(kTries, which.size()); ++i) {
    try {
      return load_picture(*set.files, which[i], config).sizes().vec();
    } catch (const WrongSize& error) {
      fail("{} {}", set.files->name(which[i]), error.what());
    } catch (const Error&) {  // load_images or the stream will name it
    }
  }
  return load_images(set, {which.front()}, config, {}).pixels.sizes().slice(1).vec();
}

// Bytes of memory of this machine. Not what is free now: a resumed run must choose as the first
// did.
double physical_memory() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// Splits by a shuffle that depends on nothing but the number of images, so that runs compare.
std::pair<std::vector<int64_t>, std::vector<int64_t>> split(const std::vector<int64_t>& which,
                                                            double share) {
  const auto held_out = static_cast<size_t>(share * static_cast<double>(which.size()));
  std::vector<int64_t> shuffled = which;
  std::sort(shuffled.begin(), shuffled.end(), [](int64_t a, int64_t b) {
    return Random::mix(static_cast<uint64_t>(a)) < Random::mix(static_cast<uint64_t>(b));
  });
  if (held_out == 0) return {which, std::move(shuffled)};
  const auto middle = shuffled.begin() + static_cast<std::ptrdiff_t>(held_out);
  std::vector<int64_t> train(middle, shuffled.end());
  std::sort(train.begin(), train.end());  // in order of the disk
  shuffled.erase(middle, shuffled.end());
  return {std::move(train), std::move(shuffled)};
}

// Tar shards that are read from start to end; the last of them are kept for evaluation.
std::unique_ptr<DataSource> open_in_order(const DataConfig& config, torch::Device device,
                                          const ReadHooks& hooks, uint64_t seed, Share share) {
  auto shards = tar_shards(config.name);
  if (shards.size() < 2) {
    fail("{}: data.in_order wants two tar shards at least, one of them to hold out; {} found",
         config.name, shards.size());
  }
  const auto count = static_cast<double>(shards.size());
  const auto kept =
      std::clamp<size_t>(static_cast<size_t>(config.held_out * count), 1, shards.size() - 1);
  const std::vector<std::filesystem::path> last(shards.end() - static_cast<std::ptrdiff_t>(kept),
                                                shards.end());
  shards.resize(shards.size() - kept);
  const std::shared_ptr<const ImageFiles> files =
      open_tar_in_order(shards, config.lanes, config.shuffle, seed, hooks.warn);
  ImageSet test{{}, open_tar(last, hooks.warn)};
  if (test.size() == 0) fail("{}: no images in its last shard", config.name);
  const auto all = first_indices(test.size());
  const auto event = shape_of(test, all, config);
  auto first = [shards, config, hooks](int64_t n) {
    const ImageSet set{{}, open_tar({shards.front()}, hooks.warn)};
    return load_images(set, first_indices(set.size(), n), config, hooks).pixels;
  };
  const std::string fingerprint =
      fmt::format("{} images in {} shards", files->size(), shards.size());
  auto stream = std::make_unique<ImageStream>(files, std::vector<int64_t>{}, config, event, seed,
                                              share, device.is_cuda(), hooks);
  return std::make_unique<StreamSource>(std::move(stream),
                                        HeldOut(std::move(test), all, config, hooks),
                                        std::move(first), event, device, fingerprint);
}

}  // namespace

std::unique_ptr<DataSource> open_image_source(const DataConfig& config, torch::Device device,
                                              const ReadHooks& hooks, uint64_t seed, Share share) {
  if (config.name == "stackedmnist") {
    return std::make_unique<StackedSource>(config, device, hooks);
  }
  if (config.in_order) return open_in_order(config, device, hooks, seed, share);
  auto set = open_images(config, Split::train, hooks);
  if (!set) fail("{}: has no training images", config.name);
  auto test = open_images(config, Split::test, hooks);
  auto train = first_indices(set->size(), config.limit);
  std::vector<int64_t> evaluation;
  if (test) {
    evaluation = first_indices(test->size());
  } else {
    std::tie(train, evaluation) = split(train, config.held_out);
    test = *set;
  }
  if (train.size() < 2) {
    fail("{}: {} image to train on; two are needed at least", config.name, train.size());
  }
  HeldOut held_out(*std::move(test), std::move(evaluation), config, hooks);

  const auto event = shape_of(*set, train, config);
  const double bytes =
      static_cast<double>(train.size()) * static_cast<double>(event[0] * event[1] * event[2]);
  const bool fits = bytes <= config.device_memory * kGiB;
  if (set->files && (!fits || bytes > 0.8 * physical_memory())) {
    auto first = [set = *set, train, config, hooks](int64_t n) {
      const auto count = std::min<int64_t>(n, static_cast<int64_t>(train.size()));
      return load_images(set, {train.begin(), train.begin() + count}, config, hooks).pixels;
    };
    auto stream = std::make_unique<ImageStream>(set->files, std::move(train), config, event, seed,
                                                share, device.is_cuda(), hooks);
    return std::make_unique<StreamSource>(std::move(stream), std::move(held_out), std::move(first),
                                          event, device, fmt::format("{} images", set->size()));
  }
  if (!fits) {
    fail(
        "{}: {:.1f} GiB of images, data.device_memory is {} GiB; raise it, or store them as a "
        "folder, LMDB or tar shards, which are read as needed",
        config.name, bytes / kGiB, config.device_memory);
  }
  return std::make_unique<ImageSource>(load_images(*set, train, config, hooks).pixels,
                                       std::move(held_out), config.flip, device);
}

}  // namespace ddaebm
