#include "ddaebm/data/download.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <curl/curl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

using File = std::unique_ptr<std::FILE, decltype([](std::FILE* f) { std::fclose(f); })>;
using Curl = std::unique_ptr<CURL, decltype([](CURL* c) { curl_easy_cleanup(c); })>;

int64_t size_or_zero(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

void flush_to_disk(const fs::path& path, std::FILE* file) {
  if (std::fflush(file) != 0 || ::fsync(::fileno(file)) != 0) {
    fail("{}: cannot write: {}", path.string(), std::strerror(errno));
  }
}

// One attempt, from where the part file ends.
class Attempt {
 public:
  Attempt(const std::string& url, const fs::path& part, int64_t bytes, const std::string& name,
          const DownloadOptions& options)
      : part_(part), from_(size_or_zero(part)), limit_(bytes), name_(name), options_(options) {
    file_.reset(std::fopen(part.c_str(), "ab"));
    if (!file_) fail("{}: cannot write: {}", part.string(), std::strerror(errno));
    curl_.reset(curl_easy_init());
    if (!curl_) throw std::bad_alloc();
    const auto set = [&](CURLoption option, auto value) {
      curl_easy_setopt(curl_.get(), option, value);
    };
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 1L);
    set(CURLOPT_MAXREDIRS, 10L);
    set(CURLOPT_FAILONERROR, 1L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT, 30L);
    // A line that has all but stopped counts as broken.
    set(CURLOPT_LOW_SPEED_LIMIT, 100L);
    set(CURLOPT_LOW_SPEED_TIME, 60L);
    set(CURLOPT_USERAGENT, "ddaebm");
    set(CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(from_));
    set(CURLOPT_ERRORBUFFER, message_);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_WRITEFUNCTION, &Attempt::write);
    set(CURLOPT_XFERINFODATA, this);
    set(CURLOPT_XFERINFOFUNCTION, &Attempt::tell);
    set(CURLOPT_NOPROGRESS, 0L);
  }

  CURLcode run() {
    const CURLcode code = curl_easy_perform(curl_.get());
    curl_easy_getinfo(curl_.get(), CURLINFO_RESPONSE_CODE, &status_);
    if (!write_error_.empty()) fail("{}: {}", part_.string(), write_error_);
    flush_to_disk(part_, file_.get());
    return code;
  }
  int64_t from() const { return from_; }
  long status() const { return status_; }
  std::string reason(CURLcode code) const {
    return message_[0] != 0 ? message_ : curl_easy_strerror(code);
  }

 private:
  static size_t write(char* data, size_t one, size_t size, void* self) {
    auto& a = *static_cast<Attempt*>(self);
    a.have_ += static_cast<int64_t>(one * size);
    if (a.limit_ > 0 && a.from_ + a.have_ > a.limit_) {
      a.write_error_ = fmt::format("more than the {} bytes that the file has", a.limit_);
      return 0;
    }
    const size_t written = std::fwrite(data, one, size, a.file_.get());
    if (written != size) a.write_error_ = fmt::format("cannot write: {}", std::strerror(errno));
    return written;
  }
  static int tell(void* self, curl_off_t total, curl_off_t now, curl_off_t, curl_off_t) {
    auto& a = *static_cast<Attempt*>(self);
    if (a.options_.progress && now > 0) {
      a.options_.progress(a.name_, a.from_ + now, total > 0 ? a.from_ + total : 0);
    }
    return 0;
  }

  fs::path part_;
  int64_t from_, limit_, have_ = 0;
  std::string name_;
  const DownloadOptions& options_;
  File file_;
  Curl curl_;
  long status_ = 0;
  std::string write_error_;
  char message_[CURL_ERROR_SIZE] = {};
};

// What is wrong with a finished file, or nothing.
std::string fault(const fs::path& path, const std::string& checksum, int64_t bytes) {
  const int64_t size = size_or_zero(path);
  if (bytes > 0 && size != bytes) return fmt::format("{} bytes, expected {}", size, bytes);
  if (checksum.empty()) return {};
  const std::string found = file_checksum(path, checksum.size());
  if (found == checksum) return {};
  return fmt::format("its {} is {}, expected {}", checksum.size() == 32 ? "MD5" : "SHA-256", found,
                     checksum);
}

bool is_archive(const std::string& name) {
  return name.ends_with(".tar.gz") || name.ends_with(".tar") || name.ends_with(".zip");
}

// A member's place in the folder; an Error where it is not in it.
fs::path safe_place(const fs::path& archive, const fs::path& folder, const char* name) {
  const fs::path path = name == nullptr ? "" : name;
  const bool climbs =
      std::any_of(path.begin(), path.end(), [](const fs::path& p) { return p == ".."; });
  if (path.empty() || path.is_absolute() || climbs) {
    fail("{}: holds '{}', which would be written outside of its folder; nothing was unpacked",
         archive.string(), path.string());
  }
  return folder / path;
}

// A folder that is removed at the end, unless it was renamed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(fs::path path) : path_(std::move(path)) {
    fs::remove_all(path_);  // what a killed process left
    fs::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

std::string file_checksum(const fs::path& path, size_t digits) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* c) { EVP_MD_CTX_free(c); })> context(
      EVP_MD_CTX_new());
  const EVP_MD* kind = digits == 32 ? EVP_md5() : EVP_sha256();
  if (!context || EVP_DigestInit_ex(context.get(), kind, nullptr) != 1) {
    fail("{}: this system's OpenSSL has no {}", path.string(), digits == 32 ? "MD5" : "SHA-256");
  }
  std::vector<unsigned char> buffer(1 << 20);
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    EVP_DigestUpdate(context.get(), buffer.data(), got);
  }
  if (std::ferror(file.get()) != 0) fail("{}: cannot read", path.string());
  std::vector<unsigned char> digest(EVP_MAX_MD_SIZE);
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), digest.data(), &size);
  digest.resize(size);
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

void download(const std::string& url, const fs::path& path, const std::string& checksum,
              int64_t bytes, const DownloadOptions& options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) fail("libcurl cannot start: {}", curl_easy_strerror(ready));
  const fs::path part = path.string() + ".part";
  auto wait = options.first_wait;
  for (int attempt = 1;; ++attempt) {
    // A part that is larger than the whole, or whole and wrong, is of no use.
    if (bytes > 0 && size_or_zero(part) >= bytes && !fault(part, checksum, bytes).empty()) {
      fs::remove(part);
    }
    if (bytes > 0 && size_or_zero(part) == bytes) break;
    Attempt transfer(url, part, bytes, path.filename().string(), options);
    const CURLcode code = transfer.run();
    const long status = transfer.status();
    if (code == CURLE_OK) break;
    // Nothing beyond what is there: whole, or of another file.
    const bool cannot_go_on = transfer.from() > 0 && (status == 416 || code == CURLE_RANGE_ERROR);
    if (cannot_go_on && status == 416 && !checksum.empty() &&
        fault(part, checksum, bytes).empty()) {
      break;
    }
    if (cannot_go_on) fs::remove(part);
    const bool refused = status >= 400 && status < 500 && status != 408 && status != 429;
    if ((refused && !cannot_go_on) || code == CURLE_URL_MALFORMAT ||
        code == CURLE_UNSUPPORTED_PROTOCOL || attempt >= options.attempts) {
      fail("{}: {}; {}", url, transfer.reason(code),
           refused ? "look up the address, or pass another with --url"
                   : "check the line and run it again, it goes on from where it was");
    }
    if (options.warn) {
      options.warn(fmt::format("{}: {}; trying again in {:.0f} s", url, transfer.reason(code),
                               std::chrono::duration<double>(wait).count()));
    }
    std::this_thread::sleep_for(wait);
    wait *= 2;
  }
  if (const std::string wrong = fault(part, checksum, bytes); !wrong.empty()) {
    fs::remove(part);
    fail("{}: {}; it was removed. Run it again, or pass another address with --url", url, wrong);
  }
  fs::rename(part, path);
}

void unpack_archive(const fs::path& archive, const fs::path& folder,
                    const DownloadOptions& options) {
  using Reader =
      std::unique_ptr<struct archive, decltype([](struct archive* a) { archive_read_free(a); })>;
  using Writer =
      std::unique_ptr<struct archive, decltype([](struct archive* a) { archive_write_free(a); })>;
  const Reader in(archive_read_new());
  const Writer out(archive_write_disk_new());
  if (!in || !out) throw std::bad_alloc();
  const auto check = [&](int status, struct archive* a) {
    if (status == ARCHIVE_OK || status == ARCHIVE_WARN || status == ARCHIVE_EOF) return status;
    const char* reason = archive_error_string(a);
    fail("{}: cannot be unpacked: {}", archive.string(), reason == nullptr ? "damaged" : reason);
  };
  archive_read_support_format_tar(in.get());
  archive_read_support_format_zip(in.get());
  archive_read_support_filter_gzip(in.get());
  archive_write_disk_set_options(out.get(), ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                                ARCHIVE_EXTRACT_SECURE_SYMLINKS |
                                                ARCHIVE_EXTRACT_NO_OVERWRITE);
  constexpr size_t kBlock = 1 << 16;
  check(archive_read_open_filename(in.get(), archive.c_str(), kBlock), in.get());
  const int64_t total = size_or_zero(archive);
  archive_entry* entry = nullptr;
  while (check(archive_read_next_header(in.get(), &entry), in.get()) != ARCHIVE_EOF) {
    const fs::path place = safe_place(archive, folder, archive_entry_pathname(entry));
    const auto type = archive_entry_filetype(entry);
    if ((type != AE_IFREG && type != AE_IFDIR) || archive_entry_hardlink(entry) != nullptr) {
      fail("{}: holds '{}', a link or device; nothing was unpacked", archive.string(),
           archive_entry_pathname(entry));
    }
    archive_entry_set_pathname(entry, place.c_str());
    archive_entry_set_perm(entry, type == AE_IFDIR ? 0755 : 0644);
    check(archive_write_header(out.get(), entry), out.get());
    const void* block = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    while (check(archive_read_data_block(in.get(), &block, &size, &offset), in.get()) !=
           ARCHIVE_EOF) {
      check(static_cast<int>(
                std::min<la_ssize_t>(archive_write_data_block(out.get(), block, size, offset), 0)),
            out.get());
      if (options.progress) {
        options.progress("unpacking " + archive.filename().string(),
                         std::min<int64_t>(archive_filter_bytes(in.get(), -1), total), total);
      }
    }
    check(archive_write_finish_entry(out.get()), out.get());
  }
}

fs::path get_image_set(const ImageSetEntry& entry, const fs::path& root, const std::string& base,
                       const DownloadOptions& options) {
  fs::path target = root / entry.folders.front();
  if (fs::exists(target)) return target;
  const fs::path downloads = target.string() + ".download";
  fs::create_directories(downloads);
  for (const auto& file : entry.files) {
    const fs::path path = downloads / file.name;
    if (fs::exists(path)) {  // an earlier call fetched it, or a person did
      const std::string wrong = fault(path, file.checksum, file.bytes);
      if (wrong.empty()) continue;
      fail("{}: {}; remove it and run this again", path.string(), wrong);
    }
    std::string address = base.empty() ? file.base : base;
    if (address.empty()) {
      fail(
          "{}: {} cannot be fetched by a program; get it from {}, put it into {} and run this "
          "again",
          entry.name, file.name, entry.by_hand, downloads.string());
    }
    if (!address.ends_with('/')) address += '/';
    download(address + file.name, path, file.checksum, file.bytes, options);
  }
  const TemporaryFolder unpacked(target.string() + ".tmp");
  for (const auto& file : entry.files) {
    const fs::path path = downloads / file.name;
    if (is_archive(file.name)) {
      unpack_archive(path, unpacked.path(), options);
    } else {
      fs::copy_file(path, unpacked.path() / file.name);
    }
  }
  ::sync();  // the name must not reach the disk before what it names
  fs::rename(unpacked.path(), target);
  fs::remove_all(downloads);
  return target;
}

}  // namespace ddaebm
