#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "ddaebm/data/catalogue.h"

namespace ddaebm {

struct DownloadOptions {
  // Bytes so far of how many (0: the server does not say), for the file named.
  std::function<void(const std::string& file, int64_t done, int64_t total)> progress;
  std::function<void(const std::string&)> warn;
  int attempts = 6;
  std::chrono::milliseconds first_wait{1000};  // doubled before each further attempt
};

// Fetches url to `path` by way of path.part, which a later call goes on from; compares size and
// checksum before the file gets its name. A line that breaks is tried again, a refusal (404) is
// not.
void download(const std::string& url, const std::filesystem::path& path,
              const std::string& checksum, int64_t bytes, const DownloadOptions& options);

// MD5 (32 digits wanted) or SHA-256 (64) of a file, in hexadecimal.
std::string file_checksum(const std::filesystem::path& path, size_t digits);

// Unpacks .tar, .tar.gz or .zip into an empty folder. Refuses members that would leave the folder,
// links and devices.
void unpack_archive(const std::filesystem::path& archive, const std::filesystem::path& folder,
                    const DownloadOptions& options);

// Fetches and unpacks a set; root/NAME appears whole or not at all. Files that have to be fetched
// by hand are looked for in root/NAME.download. `base` replaces the official address where not
// empty. Returns the set's folder.
std::filesystem::path get_image_set(const ImageSetEntry& entry, const std::filesystem::path& root,
                                    const std::string& base, const DownloadOptions& options);

}  // namespace ddaebm
