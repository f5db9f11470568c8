#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <optional>

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddaebm/data/image_files.h"
#include "ddaebm/error.h"
#include "ddaebm/random.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEndMark = 1024;  // a tar file ends in two blocks of zeros
// Compressed shards are held unpacked.
constexpr uint64_t kMaxHeld = uint64_t{16} << 30;

// A tar file from a byte on. libarchive reads it through this object, which must not move.
class TarReader {
 public:
  TarReader(const fs::path& path, int64_t from) : at_(from) {
    file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
    struct stat status {};
    if (::fstat(file_, &status) == 0) size_ = status.st_size;
    archive_ = archive_read_new();
    if (archive_ == nullptr) throw std::bad_alloc();
    archive_read_support_format_tar(archive_);
    archive_read_support_filter_gzip(archive_);
    archive_read_set_read_callback(archive_, &TarReader::read);
    archive_read_set_skip_callback(archive_, &TarReader::skip);
    archive_read_set_callback_data(archive_, this);
    opened_ = archive_read_open1(archive_) == ARCHIVE_OK;
  }
  ~TarReader() {
    archive_read_free(archive_);
    ::close(file_);
  }
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  // The next member, or nothing at the end; complaint() tells whether it came too early.
  archive_entry* next() {
    archive_entry* entry = nullptr;
    const int status = opened_ ? archive_read_next_header(archive_, &entry) : ARCHIVE_FATAL;
    if (status == ARCHIVE_OK || status == ARCHIVE_WARN) return entry;
    if (status != ARCHIVE_EOF) complaint_ = error();
    return nullptr;
  }
  // The bytes of the member just met; nothing where they are not all there.
  std::optional<std::string> data(archive_entry* entry) {
    const auto claimed = static_cast<uint64_t>(std::max<int64_t>(archive_entry_size(entry), 0));
    std::string bytes;
    std::array<char, 65536> piece{};
    while (true) {
      const auto got = archive_read_data(archive_, piece.data(), piece.size());
      if (got < 0) {
        complaint_ = error();
        return {};
      }
      if (got == 0) break;
      bytes.append(piece.data(), static_cast<size_t>(got));
      if (bytes.size() > kMaxEncoded) fail("{} bytes are too many for a picture", claimed);
    }
    if (bytes.size() != claimed) return {};
    return bytes;
  }
  int64_t position() const { return archive_read_header_position(archive_); }
  bool compressed() const { return archive_filter_code(archive_, 0) != ARCHIVE_FILTER_NONE; }
  const std::string& complaint() const { return complaint_; }
  int64_t file_size() const { return size_; }

  // Whether the file ends as a tar file does. One that is cut between two members lacks only this.
  bool has_end_mark() const {
    std::array<char, kEndMark> end{};
    return size_ >= kEndMark &&
           ::pread(file_, end.data(), end.size(), size_ - kEndMark) == kEndMark &&
           std::all_of(end.begin(), end.end(), [](char c) { return c == 0; });
  }

 private:
  std::string error() const {
    const char* text = archive_error_string(archive_);
    return text == nullptr ? "damaged" : text;
  }
  static la_ssize_t read(archive*, void* self, const void** buffer) {
    auto& reader = *static_cast<TarReader*>(self);
    ssize_t got = 0;
    do {
      got = ::pread(reader.file_, reader.buffer_.data(), reader.buffer_.size(), reader.at_);
    } while (got < 0 && errno == EINTR);
    if (got > 0) reader.at_ += got;
    *buffer = reader.buffer_.data();
    return got;
  }
  // Never beyond the end: what is missing must be missed.
  static la_int64_t skip(archive*, void* self, la_int64_t request) {
    auto& reader = *static_cast<TarReader*>(self);
    const int64_t step =
        std::clamp<int64_t>(request, 0, std::max<int64_t>(0, reader.size_ - reader.at_));
    reader.at_ += step;
    return step;
  }

  int file_ = -1;
  int64_t at_, size_ = 0;
  archive* archive_ = nullptr;
  bool opened_ = false;
  std::string complaint_;
  std::array<char, 65536> buffer_{};
};

// The name of a member that is a picture, fit to be shown; nothing of others.
std::optional<std::string> picture_name(archive_entry* entry) {
  const char* found = archive_entry_pathname(entry);
  // Where the locale has no letters for it.
  if (found == nullptr) found = archive_entry_pathname_utf8(entry);
  if (found == nullptr || archive_entry_filetype(entry) != AE_IFREG || !has_image_ending(found)) {
    return {};
  }
  std::string name = found;
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return name;
}

class TarFiles : public ImageFiles {
 public:
  TarFiles(const std::vector<fs::path>& shards, const Warn& warn) : shards_(shards) {
    for (size_t i = 0; i < shards_.size(); ++i) index(i, warn);
  }
  int64_t size() const override { return static_cast<int64_t>(members_.size()); }
  std::string name(int64_t i) const override {
    const Member& m = members_.at(static_cast<size_t>(i));
    return fmt::format("{} [{}]", shards_[m.shard].string(), m.name);
  }
  std::string bytes(int64_t i) const override {
    const Member& m = members_.at(static_cast<size_t>(i));
    if (m.held) return *m.held;
    // A fresh reader at the member's own header: libarchive knows long names and large sizes.
    TarReader reader(shards_[m.shard], m.position);
    archive_entry* entry = reader.next();
    auto data = entry == nullptr ? std::nullopt : reader.data(entry);
    if (!data) fail("cannot be read from the shard any more; did the file change?");
    return *std::move(data);
  }

 private:
  struct Member {
    size_t shard;
    int64_t position;  // of its header
    std::string name;
    std::optional<std::string> held;  // the bytes themselves, where the shard is compressed
  };

  void index(size_t shard, const Warn& warn) {
    const fs::path& path = shards_[shard];
    TarReader reader(path, 0);
    const size_t before = members_.size();
    std::string complaint;
    while (archive_entry* entry = reader.next()) {
      const auto name = picture_name(entry);
      if (!name) continue;
      Member member{shard, reader.position(), *name, {}};
      if (reader.compressed()) {
        auto data = reader.data(entry);
        if (!data) break;
        held_ += data->size();
        if (held_ > kMaxHeld) {
          fail("{}: compressed shards unpack to more than {} GiB; unpack them to .tar first",
               path.string(), kMaxHeld >> 30);
        }
        member.held = *std::move(data);
      }
      members_.push_back(std::move(member));
    }
    complaint = reader.complaint();
    if (!reader.compressed()) {
      // What was passed over was not read: the last member may be the one that is cut.
      if (members_.size() > before && !is_whole(members_.back())) {
        if (complaint.empty()) complaint = "its last picture is not whole";
        members_.pop_back();
      }
      if (complaint.empty() && !reader.has_end_mark()) complaint = "the end mark is missing";
    }
    if (complaint.empty()) return;
    if (members_.size() == before) {
      fail("{}: {} bytes, not a tar file or cut before its first picture ({}); fetch it again",
           path.string(), reader.file_size(), complaint);
    }
    warn(fmt::format("{}: the shard is cut after {} bytes ({}); the {} pictures before are used",
                     path.string(), reader.file_size(), complaint, members_.size() - before));
  }

  bool is_whole(const Member& member) const {
    TarReader reader(shards_[member.shard], member.position);
    archive_entry* entry = reader.next();
    return entry != nullptr && reader.data(entry).has_value();
  }

  std::vector<fs::path> shards_;
  std::vector<Member> members_;
  uint64_t held_ = 0;
};

class TarSequence : public ImageFiles {
 public:
  TarSequence(const std::vector<fs::path>& shards, int64_t lanes, int64_t window, uint64_t seed,
              const Warn& warn)
      : lanes_(static_cast<size_t>(lanes)), window_(window), seed_(seed) {
    if (static_cast<size_t>(lanes) > shards.size()) {
      fail("data.lanes = {}, there are {} shards to train on; it can be as many at most", lanes,
           shards.size());
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      Lane& lane = lanes_[i % lanes_.size()];
      // One shard's table at a time.
      lane.shards.push_back({shards[i], TarFiles({shards[i]}, warn).size()});
      lane.size += lane.shards.back().size;
    }
    for (const Lane& lane : lanes_) {
      if (lane.size == 0) fail("{}: no images in it", lane.shards.front().path.string());
    }
  }
  int64_t size() const override {
    return std::accumulate(lanes_.begin(), lanes_.end(), int64_t{0},
                           [](int64_t sum, const Lane& lane) { return sum + lane.size; });
  }
  std::string name(int64_t i) const override { return picture(i).name; }
  std::string bytes(int64_t i) const override { return picture(i).bytes; }

 private:
  struct Shard {
    fs::path path;
    int64_t size;
  };
  struct Picture {
    std::string name, bytes;
  };
  struct Window {
    int64_t epoch, number;
    std::vector<Picture> pictures;
  };
  // Where a lane reads on.
  struct Cursor {
    int64_t epoch = -1;
    int64_t next = 0;  // picture of the epoch
    std::vector<Shard> order;
    size_t shard = 0;  // of the order
    std::unique_ptr<TarReader> reader;
  };
  struct Lane {
    std::vector<Shard> shards;
    int64_t size = 0;
    mutable std::mutex mutex;  // guards what follows
    mutable Cursor cursor;
    mutable std::deque<std::shared_ptr<const Window>> held;
  };

  Picture picture(int64_t i) const {
    const auto count = static_cast<int64_t>(lanes_.size());
    const Lane& lane = lanes_[static_cast<size_t>(i % count)];
    const int64_t k = i / count;
    const auto found = window(lane, k / lane.size, k % lane.size / window_);
    return found->pictures[static_cast<size_t>(k % lane.size % window_)];
  }

  std::shared_ptr<const Window> window(const Lane& lane, int64_t epoch, int64_t number) const {
    constexpr size_t kHeld = 2;  // readers may be on both sides of a border
    const std::lock_guard lock(lane.mutex);
    for (const auto& there : lane.held) {
      if (there->epoch == epoch && there->number == number) return there;
    }
    if (lane.held.size() == kHeld) lane.held.pop_front();
    lane.held.push_back(read(lane, epoch, number));
    return lane.held.back();
  }

  std::shared_ptr<const Window> read(const Lane& lane, int64_t epoch, int64_t number) const {
    const int64_t first = number * window_;
    const int64_t last = std::min(first + window_, lane.size);
    Cursor& at = lane.cursor;
    if (at.epoch != epoch || at.next > first) at = start(lane, epoch);
    Window window{epoch, number, {}};
    while (at.next < last) {
      if (!at.reader) at.reader = std::make_unique<TarReader>(at.order[at.shard].path, 0);
      archive_entry* entry = at.reader->next();
      if (entry == nullptr) {
        at.reader.reset();
        ++at.shard;
        if (at.shard == at.order.size())
          fail("the shards have fewer pictures now; did they change?");
        continue;
      }
      const auto name = picture_name(entry);
      if (!name) continue;
      if (at.next++ < first) continue;
      auto bytes = at.reader->data(entry);
      const std::string& path = at.order[at.shard].path.string();
      if (!bytes) fail("{}: cannot be read any more; did the file change?", path);
      window.pictures.push_back({fmt::format("{} [{}]", path, *name), *std::move(bytes)});
    }
    const uint64_t seed = Random::mix(mixed(epoch) ^ static_cast<uint64_t>(number));
    for (size_t i = window.pictures.size(); i > 1; --i) {
      std::swap(window.pictures[i - 1], window.pictures[Random::mix(seed ^ i) % i]);
    }
    return std::make_shared<const Window>(std::move(window));
  }

  Cursor start(const Lane& lane, int64_t epoch) const {
    Cursor cursor;
    cursor.epoch = epoch;
    cursor.order = lane.shards;
    for (size_t i = cursor.order.size(); i > 1; --i) {
      std::swap(cursor.order[i - 1], cursor.order[Random::mix(mixed(epoch) ^ ~i) % i]);
    }
    return cursor;
  }

  uint64_t mixed(int64_t epoch) const {
    return Random::mix(seed_ ^ Random::mix(static_cast<uint64_t>(epoch)));
  }

  std::vector<Lane> lanes_;
  int64_t window_;
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<ImageFiles> open_tar_in_order(const std::vector<fs::path>& shards, int64_t lanes,
                                              int64_t window, uint64_t seed, const Warn& warn) {
  return std::make_unique<TarSequence>(shards, lanes, window, seed, warn);
}

std::unique_ptr<ImageFiles> open_tar(const std::vector<fs::path>& shards, const Warn& warn) {
  return std::make_unique<TarFiles>(shards, warn);
}

}  // namespace ddaebm
