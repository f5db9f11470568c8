#include "ddaebm/io/zip.h"

#include <algorithm>

#include <zip.h>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"

namespace ddaebm {
namespace {

constexpr uint64_t kMaxUnpacked = uint64_t{16} << 30;
constexpr uint64_t kMaxDeflateRatio = 1032;  // the most that deflate can express
constexpr uint64_t kBlock = uint64_t{1} << 22;

struct Close {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

}  // namespace

struct ZipReader::Archive {
  std::unique_ptr<zip_t, Close> zip;
};

ZipReader::ZipReader(const std::filesystem::path& path) : path_(path) {
  std::error_code no_size;
  file_size_ = std::filesystem::file_size(path, no_size);
  if (no_size) fail("{}: cannot be read: {}", path.string(), no_size.message());
  int code = 0;
  zip_t* zip = zip_open(path.c_str(), ZIP_RDONLY, &code);
  if (zip == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string reason = zip_error_strerror(&error);
    zip_error_fini(&error);
    fail("{}: cannot be read as a zip archive: {}; is it whole?", path.string(), reason);
  }
  archive_ = std::make_unique<Archive>();
  archive_->zip.reset(zip);

  for (zip_int64_t i = 0; i < zip_get_num_entries(zip, 0); ++i) {
    zip_stat_t entry;
    constexpr auto kNeeded = ZIP_STAT_NAME | ZIP_STAT_INDEX | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                             ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip, static_cast<zip_uint64_t>(i), 0, &entry) != 0 ||
        (entry.valid & kNeeded) != kNeeded) {
      fail("{}: entry {} of the archive cannot be read", path.string(), i);
    }
    const bool deflated = entry.comp_method == ZIP_CM_DEFLATE;
    const bool readable =
        (deflated || entry.comp_method == ZIP_CM_STORE) && entry.encryption_method == ZIP_EM_NONE;
    const Entry found{entry.index, entry.size, entry.comp_size, deflated, readable};
    if (!entries_.emplace(entry.name, found).second) {
      fail("{}: {} stands twice in the archive", path.string(), excerpt(entry.name));
    }
    names_.emplace_back(entry.name);
  }
}

ZipReader::~ZipReader() = default;

std::string ZipReader::read(const std::string& name) {
  const std::string where = fmt::format("{}: {}", path_.string(), excerpt(name));
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail("{}: not in the archive; is it whole?", where);
  const Entry& entry = found->second;
  if (!entry.readable) {
    fail("{}: neither stored nor deflated; pack the archive again with Python's zipfile", where);
  }
  if (entry.packed_size > file_size_ ||
      entry.size / (entry.deflated ? kMaxDeflateRatio : 1) > entry.packed_size) {
    fail("{}: {} bytes cannot unpack from {}; the archive is damaged", where, entry.size,
         entry.packed_size);
  }
  if (entry.size > kMaxUnpacked - unpacked_) {
    fail("{}: the archive unpacks to more than {} GiB; split it", where, kMaxUnpacked >> 30);
  }
  unpacked_ += entry.size;

  const std::unique_ptr<zip_file_t, Close> file(
      zip_fopen_index(archive_->zip.get(), entry.index, 0));
  if (!file) fail("{}: cannot be unpacked: {}", where, zip_strerror(archive_->zip.get()));
  std::string bytes;
  uint64_t have = 0;
  while (have < entry.size) {  // memory is taken as bytes come, not as they are claimed
    if (have == bytes.size()) bytes.resize(std::min(entry.size, std::max(2 * have, kBlock)));
    const zip_int64_t got = zip_fread(file.get(), bytes.data() + have, bytes.size() - have);
    if (got <= 0) fail("{}: the data are damaged or cut short", where);
    have += static_cast<uint64_t>(got);
  }
  // The checksum is compared where the end is met.
  char beyond = 0;
  if (zip_fread(file.get(), &beyond, 1) != 0) fail("{}: the data are damaged", where);
  return bytes;
}

}  // namespace ddaebm
