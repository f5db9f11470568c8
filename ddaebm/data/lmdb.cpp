// LMDB's own library maps the file and trusts every offset in it: one damaged byte, and the process
// is gone. Reading is the easy half of the format (version 1, 64 bits, little endian), so it is
// done here, with each offset checked. Integers of page headers, nodes and meta pages are named as
// in lmdb's mdb.c.

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ddaebm/data/decode.h"
#include "ddaebm/data/image_files.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr uint64_t kPageHeader = 16;                  // pgno 8, pad 2, flags 2, lower 2, upper 2
constexpr uint64_t kNodeHeader = 8;                   // lo 2, hi 2, flags 2, ksize 2
constexpr uint16_t kBranch = 0x01, kLeaf = 0x02;      // page flags
constexpr uint16_t kBigData = 0x01, kSubData = 0x02;  // node flags
constexpr uint16_t kDupSort = 0x04;                   // database flag
constexpr uint64_t kInvalidPage = ~uint64_t{0};

template <class T>
T number(std::string_view bytes, uint64_t at) {
  T value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);  // callers have checked the range
  return value;
}

class LmdbFiles : public ImageFiles {
 public:
  explicit LmdbFiles(const std::filesystem::path& folder) : path_(folder / "data.mdb") {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) fail("{}: cannot open: {}", path_.string(), std::strerror(errno));
    try {
      struct stat status {};
      if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
        fail("{}: cannot be read as a file", path_.string());
      }
      file_size_ = static_cast<uint64_t>(status.st_size);
      index();
      look_for_images();
    } catch (...) {
      ::close(file_);
      throw;
    }
  }
  ~LmdbFiles() override { ::close(file_); }
  LmdbFiles(const LmdbFiles&) = delete;
  LmdbFiles& operator=(const LmdbFiles&) = delete;

  int64_t size() const override { return static_cast<int64_t>(values_.size()); }
  std::string name(int64_t i) const override {
    std::string key = values_.at(static_cast<size_t>(i)).key;
    for (char& c : key) {
      if (c < ' ' || c > '~') c = '?';
    }
    return fmt::format("{} [{}]", path_.parent_path().string(), key);
  }
  std::string bytes(int64_t i) const override {
    const Value& value = values_.at(static_cast<size_t>(i));
    if (value.size > kMaxEncoded) fail("{} bytes are too many for a picture", value.size);
    return read(value.offset, value.size);
  }

 private:
  struct Value {
    std::string key;
    uint64_t offset, size;
  };

  std::string read(uint64_t offset, uint64_t size) const {
    if (offset > file_size_ || size > file_size_ - offset) {
      fail("{}: {} bytes, but its tables point to byte {}; the file is cut short or damaged",
           path_.string(), file_size_, offset + size);
    }
    std::string bytes(size, '\0');
    for (uint64_t have = 0; have < size;) {
      const ssize_t got =
          ::pread(file_, bytes.data() + have, size - have, static_cast<off_t>(offset + have));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        fail("{}: cannot read: {}", path_.string(), got == 0 ? "cut short" : std::strerror(errno));
      }
      have += static_cast<uint64_t>(got);
    }
    return bytes;
  }

  [[noreturn]] void damaged(const char* what) const {
    fail("{}: damaged LMDB: {}; fetch it again", path_.string(), what);
  }

  std::string page(uint64_t pgno) const {
    if (pgno >= file_size_ / page_size_) {
      fail("{}: {} bytes, but page {} of {} bytes is wanted; the file is cut short or damaged",
           path_.string(), file_size_, pgno, page_size_);
    }
    return read(pgno * page_size_, page_size_);
  }

  void index() {
    // Two meta pages; the one of the later transaction counts.
    constexpr uint64_t kMetaSize = 136;
    constexpr uint64_t kMainDb = 72;  // of the two databases of a meta page, the second
    const auto meta_at = [&](uint64_t offset) -> std::optional<std::string> {
      if (offset > file_size_ || file_size_ - offset < kPageHeader + kMetaSize) return {};
      std::string meta = read(offset + kPageHeader, kMetaSize);
      if (number<uint32_t>(meta, 0) != 0xBEEFC0DE) return {};
      return meta;
    };
    auto meta = meta_at(0);
    if (!meta) fail("{}: not an LMDB file", path_.string());
    if (const auto version = number<uint32_t>(*meta, 4); version != 1) {
      fail("{}: version {} of the LMDB format, 1 is known", path_.string(), version);
    }
    page_size_ = number<uint32_t>(*meta, 24);
    if (page_size_ < 256 || page_size_ > 65536 || (page_size_ & (page_size_ - 1)) != 0) {
      damaged("its page size is none");
    }
    const auto txnid = [](const std::string& m) { return number<uint64_t>(m, 128); };
    if (const auto second = meta_at(page_size_); second && txnid(*second) > txnid(*meta)) {
      meta = second;
    }
    if ((number<uint16_t>(*meta, kMainDb + 4) & kDupSort) != 0) {
      fail("{}: an LMDB with several values a key; expected one picture a key", path_.string());
    }
    const auto root = number<uint64_t>(*meta, kMainDb + 40);
    if (root != kInvalidPage) walk(root, 0);
  }

  void walk(uint64_t pgno, int depth) {
    constexpr int kMaxDepth = 32;
    if (depth > kMaxDepth || ++visited_ > file_size_ / page_size_) damaged("its tree has a loop");
    const std::string bytes = page(pgno);
    const auto flags = number<uint16_t>(bytes, 10);
    const auto lower = number<uint16_t>(bytes, 12);
    if (lower < kPageHeader || lower > bytes.size()) damaged("a page with a wrong header");
    if ((flags & (kBranch | kLeaf)) == 0) damaged("a page of its tree is none");
    for (uint64_t i = 0; i < (lower - kPageHeader) / 2; ++i) {
      const uint64_t node = number<uint16_t>(bytes, kPageHeader + 2 * i);
      if (node < kPageHeader || node + kNodeHeader > bytes.size()) damaged("a node off its page");
      const uint64_t low = number<uint16_t>(bytes, node);
      const uint64_t high = number<uint16_t>(bytes, node + 2);
      const uint64_t node_flags = number<uint16_t>(bytes, node + 4);
      const uint64_t key_size = number<uint16_t>(bytes, node + 6);
      if ((flags & kBranch) != 0) {
        walk(low | high << 16 | node_flags << 32, depth + 1);
        continue;
      }
      const uint64_t data = node + kNodeHeader + key_size;
      if (data > bytes.size()) damaged("a key off its page");
      if ((node_flags & kSubData) != 0) continue;  // a named database beside the pictures
      Value value{bytes.substr(node + kNodeHeader, key_size), 0, low | high << 16};
      if ((node_flags & kBigData) != 0) {
        if (bytes.size() - data < 8) damaged("a value off its page");
        const auto first = number<uint64_t>(bytes, data);
        if (first > file_size_ / page_size_) damaged("a value beyond the end; is it cut short?");
        value.offset = first * page_size_ + kPageHeader;
      } else {
        if (value.size > bytes.size() - data) damaged("a value off its page");
        value.offset = pgno * page_size_ + data;
      }
      if (value.offset > file_size_ || value.size > file_size_ - value.offset) {
        fail("{}: {} bytes, but a value ends at byte {}; the file is cut short", path_.string(),
             file_size_, value.offset + value.size);
      }
      values_.push_back(std::move(value));
    }
  }

  // A look at the first few values: an LMDB of something else is told at once.
  void look_for_images() const {
    constexpr size_t kLook = 100;
    constexpr uint64_t kStart = 12;
    for (size_t i = 0; i < std::min(kLook, values_.size()); ++i) {
      const Value& value = values_[i];
      if (is_encoded_image(read(value.offset, std::min(kStart, value.size)))) return;
    }
    fail("{}: an LMDB without images: {}; expected JPEG, PNG or WebP files as values",
         path_.parent_path().string(),
         values_.empty() ? std::string("it is empty")
                         : fmt::format("none in the first {} of {} values",
                                       std::min(kLook, values_.size()), values_.size()));
  }

  std::filesystem::path path_;
  int file_ = -1;
  uint64_t file_size_ = 0, page_size_ = 0, visited_ = 0;
  std::vector<Value> values_;
};

}  // namespace

std::unique_ptr<ImageFiles> open_lmdb(const std::filesystem::path& folder) {
  return std::make_unique<LmdbFiles>(folder);
}

}  // namespace ddaebm
