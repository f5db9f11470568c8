#include "ddaebm/data/images.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <regex>
#include <set>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/cifar_python.h"
#include "ddaebm/data/decode.h"
#include "ddaebm/data/records.h"
#include "ddaebm/data/workers.h"
#include "ddaebm/error.h"
#include "ddaebm/random.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

// ---- Which file is what ----

bool ends_in(const fs::path& path, std::initializer_list<std::string_view> endings) {
  std::string name = path.filename().string();
  std::transform(name.begin(), name.end(), name.begin(), ::tolower);
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}
bool is_tar(const fs::path& path) { return ends_in(path, {".tar", ".tar.gz", ".tgz"}); }
bool is_idx(const fs::path& path) {
  return ends_in(path, {"-ubyte", "-ubyte.gz", ".idx", ".idx.gz"});
}

// CIFAR's pickled batches have the names of the binary ones, without an ending.
bool is_cifar_python(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool in_100 = path.parent_path().filename() == "cifar-100-python";
  return fs::is_regular_file(path) &&
         (std::regex_match(name, std::regex("data_batch_[0-9]+|test_batch")) ||
          (in_100 && (name == "train" || name == "test")));
}

Images read_cifar_python_batch(const fs::path& path) {
  auto [pixels, labels] = read_cifar_python(path);
  return {pixels, labels};
}

// The labels of train-images-idx3-ubyte.gz lie beside it in train-labels-idx1-ubyte.gz.
Images read_idx_images(const fs::path& path) {
  Images images;
  auto pixels = read_idx(path);
  if (pixels.dim() < 3 || pixels.numel() == 0) {
    fail("{}: IDX of shape {}; expected images [N, H, W] or [N, C, H, W]", path.string(),
         fmt::join(pixels.sizes(), " x "));
  }
  images.pixels = pixels.dim() == 3 ? pixels.unsqueeze(1) : pixels;
  const std::string name = path.filename().string();
  const size_t at = name.find("images-idx3");
  if (at == std::string::npos) return images;
  const auto beside = path.parent_path() / std::string(name).replace(at, 11, "labels-idx1");
  if (!fs::exists(beside)) return images;
  const auto labels = read_idx(beside);
  if (labels.dim() != 1 || labels.size(0) != images.pixels.size(0)) {
    fail("{}: labels of shape {} for {} images", beside.string(), fmt::join(labels.sizes(), " x "),
         images.pixels.size(0));
  }
  images.labels = labels.to(torch::kLong);
  return images;
}

Images read_batches(const std::vector<fs::path>& paths) {
  std::vector<torch::Tensor> pixels;
  std::vector<torch::Tensor> labels;
  for (const auto& path : paths) {
    if (is_cifar_python(path)) {
      Images batch = read_cifar_python_batch(path);
      pixels.push_back(batch.pixels);
      labels.push_back(batch.labels);
    } else {
      auto [batch_pixels, batch_labels] = read_cifar_binary(path);
      pixels.push_back(batch_pixels);
      labels.push_back(batch_labels);
    }
  }
  if (pixels.size() == 1) return {pixels[0], labels[0]};
  return {torch::cat(pixels), torch::cat(labels)};
}

ImageSet in_memory(Images images) { return {std::move(images), nullptr}; }

// ---- Folders ----

// What lies directly in the folder, sorted by name.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

template <class Wanted>
std::vector<fs::path> those(const std::vector<fs::path>& entries, Wanted wanted) {
  std::vector<fs::path> found;
  std::copy_if(entries.begin(), entries.end(), std::back_inserter(found), wanted);
  return found;
}
auto named(const char* pattern) {
  return [wanted = std::regex(pattern)](const fs::path& path) {
    return std::regex_match(path.filename().string(), wanted);
  };
}

// CelebA's list of which picture belongs to which part: "000001.jpg 0"; 0 is training, 2 the test.
std::vector<fs::path> celeba_part(const fs::path& list, const fs::path& pictures, Split split) {
  std::ifstream file(list);
  const std::string wanted = split == Split::train ? "0" : "2";
  std::vector<fs::path> paths;
  int64_t line = 0;
  std::string name;
  std::string part;
  while (file >> name >> part) {
    ++line;
    if (name.find('/') != std::string::npos || (part != "0" && part != "1" && part != "2")) {
      fail("{}:{}: expected a picture's name and 0, 1 or 2", list.string(), line);
    }
    if (part == wanted) paths.push_back(pictures / name);
  }
  if (paths.empty()) fail("{}: names no picture of part {}", list.string(), wanted);
  return paths;
}

std::optional<ImageSet> open_folder(const fs::path& folder, Split split, const ReadHooks& hooks) {
  const bool train = split == Split::train;
  const auto entries = entries_of(folder);
  const auto has = [&](const char* name) { return fs::exists(folder / name); };
  // A split that the official files have; either part may be missing, but not both.
  const auto part = [&](const char* train_files, const char* test_files,
                        auto open) -> std::optional<std::optional<ImageSet>> {
    const auto trains = those(entries, named(train_files));
    const auto tests = those(entries, named(test_files));
    if (trains.empty() && tests.empty()) return {};
    const auto& wanted = train ? trains : tests;
    if (wanted.empty()) return std::optional<ImageSet>();
    return std::optional<ImageSet>(open(wanted));
  };
  const auto idx = [](const auto& paths) { return in_memory(read_idx_images(paths[0])); };
  const auto batches = [](const auto& paths) { return in_memory(read_batches(paths)); };
  const auto lmdb = [&](const auto& paths) {
    if (paths.size() > 1) fail("{}: several LMDBs; name one of them", folder.string());
    return ImageSet{{}, open_lmdb(paths[0])};
  };

  if (has("data.mdb")) {
    if (!train) return {};
    return ImageSet{{}, open_lmdb(folder)};
  }
  if (auto set = part("train-images-idx3-ubyte(.gz)?", "t10k-images-idx3-ubyte(.gz)?", idx)) {
    return *set;
  }
  if (auto set =
          part("data_batch_[0-9]+\\.bin|train\\.bin", "test_batch\\.bin|test\\.bin", batches)) {
    return *set;
  }
  if (has("data_batch_1")) {
    if (auto set = part("data_batch_[0-9]+", "test_batch", batches)) return *set;
  }
  if (folder.filename() == "cifar-100-python") {
    if (auto set = part("train", "test", batches)) return *set;
  }
  if (auto set = part(".*_train_lmdb", ".*_val_lmdb", lmdb)) return *set;
  for (const char* inner :
       {"cifar-10-batches-bin", "cifar-100-binary", "cifar-10-batches-py", "cifar-100-python"}) {
    if (has(inner)) return open_folder(folder / inner, split, hooks);
  }
  if (has("img_align_celeba") && has("list_eval_partition.txt")) {
    return ImageSet{{},
                    open_image_list(celeba_part(folder / "list_eval_partition.txt",
                                                folder / "img_align_celeba", split))};
  }
  if (!train) return {};
  if (const auto shards = those(entries, is_tar); !shards.empty()) {
    auto files = open_tar(shards, hooks.warn);
    if (files->size() == 0) fail("{}: no images in its tar files", folder.string());
    return ImageSet{{}, std::move(files)};
  }
  auto files = open_image_folder(folder);
  if (files->size() == 0) {
    fail(
        "{}: no images; expected .png, .jpg or .webp files, .tar shards, an LMDB (data.mdb), or "
        "the files of MNIST or CIFAR",
        folder.string());
  }
  return ImageSet{{}, std::move(files)};
}

std::optional<ImageSet> open_path(const fs::path& path, Split split, const ReadHooks& hooks) {
  if (!fs::exists(path)) fail("{}: no such file or folder", path.string());
  if (fs::is_directory(path)) return open_folder(path, split, hooks);
  if (split == Split::test) return {};
  if (is_tar(path)) {
    auto files = open_tar({path}, hooks.warn);
    if (files->size() == 0) fail("{}: no images in it", path.string());
    return ImageSet{{}, std::move(files)};
  }
  if (has_image_ending(path)) return ImageSet{{}, open_image_list({path})};
  if (is_idx(path)) return in_memory(read_idx_images(path));
  if (ends_in(path, {".bin"}) || is_cifar_python(path)) return in_memory(read_batches({path}));
  if (ends_in(path, {".npy"})) return in_memory({read_image_npy(path), {}});
  fail("{}: expected a folder of images, an LMDB, tar shards, IDX, CIFAR .bin or .npy",
       path.string());
}

ImageSet checked(std::optional<ImageSet> set, const ImageSetEntry& entry, const fs::path& folder,
                 Split split) {
  const int64_t wanted = split == Split::train ? entry.train : entry.test;
  const int64_t found = set ? set->size() : 0;
  if (wanted > 0 && found != wanted) {
    fail(
        "{}: {} {} images in {}, the official set has {}; remove the folder and fetch it: `ddaebm "
        "data get {}`",
        entry.name, found, split == Split::train ? "training" : "test", folder.string(), wanted,
        entry.name);
  }
  return *std::move(set);
}

// ---- Framing and decoding ----

void check_crop(const std::vector<int64_t>& crop) {
  if (crop.empty()) return;
  if (crop.size() != 4) {
    fail("data.crop has {} numbers; expected left, top, right, bottom", crop.size());
  }
  const bool none = std::all_of(crop.begin(), crop.end(), [](int64_t edge) { return edge == 0; });
  if (!none && (crop[0] >= crop[2] || crop[1] >= crop[3])) {
    fail("data.crop is {}; expected left < right and top < bottom", fmt::join(crop, ", "));
  }
}

// Cuts and scales uint8 [N, C, H, W].
torch::Tensor frame(torch::Tensor pixels, const DataConfig& config) {
  const auto& crop = config.crop;  // left, top, right, bottom
  if (!crop.empty() && crop[2] > 0) {
    if (pixels.size(3) < crop[2] || pixels.size(2) < crop[3]) {
      throw WrongSize(fmt::format("is {} x {} pixels; data.crop needs {} x {}", pixels.size(3),
                                  pixels.size(2), crop[2], crop[3]));
    }
    pixels = pixels.slice(3, crop[0], crop[2]).slice(2, crop[1], crop[3]);
  }
  const int64_t side = config.size;
  if (side == 0) return pixels.contiguous();
  const int64_t shorter = std::min(pixels.size(2), pixels.size(3));
  if (shorter != side) {
    const int64_t height = pixels.size(2) * side / shorter;
    const int64_t width = pixels.size(3) * side / shorter;
    constexpr int64_t kLongest = 1 << 16;
    if (std::max(height, width) > kLongest) {
      fail("{} x {} pixels are too narrow for a square of {}", pixels.size(3), pixels.size(2),
           side);
    }
    pixels = at::_upsample_bilinear2d_aa(pixels.to(torch::kFloat), {height, width},
                                         /*align_corners=*/false)
                 .round_()
                 .clamp_(0, 255)
                 .to(torch::kUInt8);
  }
  // Halves to even, as the field's usual centre crop rounds.
  const auto from = [&](int64_t length) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(length - side) / 2));
  };
  const int64_t y = from(pixels.size(2));
  const int64_t x = from(pixels.size(3));
  return pixels.slice(2, y, y + side).slice(3, x, x + side).contiguous();
}

torch::Tensor frame_in_pieces(const torch::Tensor& pixels, const DataConfig& config) {
  constexpr int64_t kPiece = 1024;  // bounds what the scaling in float needs
  if (pixels.size(0) <= kPiece) return frame(pixels, config);
  std::vector<torch::Tensor> pieces;
  for (const auto& piece : pixels.split(kPiece)) pieces.push_back(frame(piece, config));
  return torch::cat(pieces);
}

// Decodes the pictures of one call of load_images.
class Decoding {
 public:
  Decoding(const ImageFiles& files, const std::vector<int64_t>& which, const DataConfig& config)
      : files_(files), which_(which), config_(config), sound_(which.size(), 0) {}

  torch::Tensor run(const ReadHooks& hooks) {
    probe();
    const auto total = static_cast<int64_t>(which_.size());
    {
      Workers workers(static_cast<int>(std::min<int64_t>(worker_count(), total)),
                      [this] { work(); });
      std::unique_lock lock(mutex_);
      while (done_ < total && !stopped_) {
        changed_.wait_for(lock, std::chrono::milliseconds(200));
        const int64_t done = done_;
        lock.unlock();
        if (hooks.progress) hooks.progress(done, total);
        lock.lock();
      }
    }
    if (thrown_) std::rethrow_exception(thrown_);
    if (wrong_size_) fail("{}", wrong_size_->second);
    report(hooks);
    if (hooks.progress) hooks.progress(total, total);
    return failures_.empty() ? pixels_ : keep_sound();
  }

  std::string name(int64_t place) const { return files_.name(which_[static_cast<size_t>(place)]); }

 private:
  // The first picture that decodes gives the shape of all.
  void probe() {
    for (size_t place = 0; place < which_.size(); ++place) {
      try {
        const auto picture = load(static_cast<int64_t>(place));
        const auto n = static_cast<int64_t>(which_.size());
        pixels_ = torch::empty({n, 3, picture.size(1), picture.size(2)}, torch::kUInt8);
        first_ = static_cast<int64_t>(place);
        return;
      } catch (const WrongSize& error) {
        fail("{} {}", name(static_cast<int64_t>(place)), error.what());
      } catch (const Error& error) {
        failures_[static_cast<int64_t>(place)] = error.what();
        if (too_many()) give_up();
      }
    }
    fail("{}: no images", config_.name);
  }

  torch::Tensor load(int64_t place) const {
    return load_picture(files_, which_[static_cast<size_t>(place)], config_);
  }

  void work() {
    for (int64_t place = next_++; place < pixels_.size(0) && !stopped_; place = next_++) {
      std::exception_ptr thrown;
      std::string reason;
      std::string wrong_size;
      try {
        const auto picture = load(place);
        if (picture.sizes() == pixels_.sizes().slice(1)) {
          pixels_[place].copy_(picture);
          sound_[static_cast<size_t>(place)] = 1;
        } else {
          wrong_size = fmt::format(
              "{} is {} x {} pixels, {} is {} x {}; set data.size to scale all "
              "to one size",
              name(place), picture.size(2), picture.size(1), name(first_), pixels_.size(3),
              pixels_.size(2));
        }
      } catch (const WrongSize& error) {
        wrong_size = fmt::format("{} {}", name(place), error.what());
      } catch (const Error& error) {
        reason = error.what();
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      ++done_;
      if (!reason.empty()) failures_[place] = reason;
      if (!wrong_size.empty() && (!wrong_size_ || place < wrong_size_->first)) {
        wrong_size_.emplace(place, wrong_size);
      }
      if (thrown) thrown_ = thrown;
      if (thrown_ || wrong_size_ || too_many()) stopped_ = true;
      if (stopped_ || done_ == pixels_.size(0)) changed_.notify_one();
    }
  }

  bool too_many() const { return failures_.size() * 100 > which_.size(); }

  [[noreturn]] void give_up() const {
    const auto& [place, reason] = *failures_.begin();
    fail("{}: more than 1 % of {} images do not decode, such as {}: {}; mend or remove them",
         config_.name, which_.size(), name(place), reason);
  }

  void report(const ReadHooks& hooks) const {
    if (failures_.empty()) return;
    if (too_many()) give_up();
    constexpr size_t kNamed = 20;
    size_t named_so_far = 0;
    for (const auto& [place, reason] : failures_) {
      if (++named_so_far > kNamed) break;
      hooks.warn(fmt::format("{}: {}; skipped", name(place), reason));
    }
    hooks.warn(fmt::format("{}: {} of {} images do not decode and are skipped", config_.name,
                           failures_.size(), which_.size()));
  }

  torch::Tensor keep_sound() const {
    std::vector<int64_t> kept;
    for (size_t i = 0; i < sound_.size(); ++i) {
      if (sound_[i] != 0) kept.push_back(static_cast<int64_t>(i));
    }
    return pixels_.index_select(0, torch::tensor(kept));
  }

  const ImageFiles& files_;
  const std::vector<int64_t>& which_;
  const DataConfig& config_;
  torch::Tensor pixels_;  // [n, 3, H, W]
  int64_t first_ = 0;     // the place of the picture that gave the shape
  std::vector<char> sound_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int64_t done_ = 0;
  std::map<int64_t, std::string> failures_;  // by place, so that warnings come in order
  std::optional<std::pair<int64_t, std::string>> wrong_size_;
  std::exception_ptr thrown_;
};

}  // namespace

bool is_image_data(const std::string& name) {
  if (find_image_set(name) != nullptr) return true;
  const fs::path path = name;
  if (fs::is_directory(path)) return true;
  if (!fs::is_regular_file(path)) return false;
  if (ends_in(path, {".npy"})) return is_image_npy(path);
  return is_tar(path) || is_idx(path) || has_image_ending(path) || ends_in(path, {".bin"}) ||
         is_cifar_python(path);
}

std::optional<ImageSet> open_images(const DataConfig& config, Split split, const ReadHooks& hooks) {
  check_crop(config.crop);
  const ImageSetEntry* entry = find_image_set(config.name);
  if (entry == nullptr) return open_path(config.name, split, hooks);
  const fs::path root = data_root(config.root);
  const auto folder = locate(*entry, root);
  if (!folder) {
    fail("{}: not found in {}; fetch it with `ddaebm data get {}`, or set data.root", entry->name,
         root.string(), entry->name);
  }
  auto set = open_folder(*folder, split, hooks);
  if (entry->train > 0) set = checked(std::move(set), *entry, *folder, split);
  if (entry->name != "stackedmnist") return set;

  constexpr int64_t kTestStacks = 26000;  // as many as are drawn to measure a model
  const int64_t n = split == Split::test ? kTestStacks : config.stacks > 0 ? config.stacks : 128000;
  const auto table = stack_table(n, set->size(), split);
  Images stacks{stack_digits(set->stored.pixels, table), {}};
  if (set->stored.labels.defined()) {
    const auto digits = set->stored.labels.index_select(0, table.view(-1)).view({-1, 3});
    stacks.labels = digits.select(1, 0) * 100 + digits.select(1, 1) * 10 + digits.select(1, 2);
  }
  return in_memory(std::move(stacks));
}

std::vector<fs::path> tar_shards(const std::string& name) {
  std::vector<fs::path> found;
  if (is_tar(name) && fs::is_regular_file(name)) found.emplace_back(name);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(name, none)) {
    if (is_tar(entry.path()) && entry.is_regular_file()) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

torch::Tensor load_picture(const ImageFiles& files, int64_t i, const DataConfig& config) {
  return load_picture(files.bytes(i), config);
}

torch::Tensor load_picture(std::string_view bytes, const DataConfig& config) {
  Picture picture = decode_image(bytes);
  const auto pixels =
      torch::from_blob(picture.rgb.data(), {1, picture.height, picture.width, 3}, torch::kUInt8)
          .permute({0, 3, 1, 2});
  // Not a view: frame() copies at the latest when it makes the result contiguous.
  auto framed = frame(pixels, config)[0];
  return framed.data_ptr() == picture.rgb.data() ? framed.clone() : framed;
}

Images load_images(const ImageSet& set, const std::vector<int64_t>& which, const DataConfig& config,
                   const ReadHooks& hooks) {
  const at::NoGradGuard no_grad;
  if (which.empty()) fail("{}: no images", config.name);
  if (set.files) return {Decoding(*set.files, which, config).run(hooks), {}};
  Images images = set.stored;
  const auto n = static_cast<int64_t>(which.size());
  const bool all = n == set.size() && which.front() == 0 && which.back() == n - 1 &&
                   std::is_sorted(which.begin(), which.end());
  if (!all) {
    const auto index = torch::tensor(which);
    images.pixels = images.pixels.index_select(0, index);
    if (images.labels.defined()) images.labels = images.labels.index_select(0, index);
  }
  try {
    images.pixels = frame_in_pieces(images.pixels, config);
  } catch (const WrongSize& error) {
    fail("{} {}", config.name, error.what());
  }
  return images;
}

Images read_images(const DataConfig& config, Split split, const ReadHooks& hooks) {
  const auto set = open_images(config, split, hooks);
  if (!set) {
    fail("{}: has no {} images", config.name, split == Split::train ? "training" : "test");
  }
  return load_images(*set, first_indices(set->size(), split == Split::train ? config.limit : 0),
                     config, hooks);
}

torch::Tensor scaled(const torch::Tensor& pixels) {
  return pixels.to(torch::kFloat).div_(127.5).sub_(1);
}

torch::Tensor to_bytes(const torch::Tensor& images) {
  return ((images + 1) * 127.5).round().clamp(0, 255).to(torch::kUInt8);
}

std::vector<int64_t> first_indices(int64_t n, int64_t limit) {
  std::vector<int64_t> indices(static_cast<size_t>(limit > 0 ? std::min(n, limit) : n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

torch::Tensor stack_table(int64_t n, int64_t digits, Split split) {
  auto table = torch::empty({n, 3}, torch::kLong);
  auto* entry = table.data_ptr<int64_t>();
  // A number for each entry, from the entry's place alone: the same stacks on every machine.
  const uint64_t stream = Random::mix(split == Split::train ? 1 : 2);
  for (int64_t i = 0; i < table.numel(); ++i) {
    entry[i] = static_cast<int64_t>(Random::mix(stream ^ static_cast<uint64_t>(i)) %
                                    static_cast<uint64_t>(digits));
  }
  return table;
}

torch::Tensor stack_digits(const torch::Tensor& digits, const torch::Tensor& table) {
  const auto chosen = digits.index_select(0, table.reshape({-1}));
  return at::constant_pad_nd(chosen.view({-1, 3, digits.size(2), digits.size(3)}), {2, 2, 2, 2}, 0);
}

}  // namespace ddaebm
