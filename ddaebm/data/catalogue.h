#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace ddaebm {

// A file of a set at its official source.
struct RemoteFile {
  std::string name;
  std::string base;      // URL up to the name; empty: it has to be fetched by hand
  std::string checksum;  // MD5 (32 digits) or SHA-256 (64); empty: none is published
  int64_t bytes = 0;     // 0: unknown
};

// An image set that has a name.
struct ImageSetEntry {
  std::string name, description;
  std::vector<std::string> folders;  // where it may lie under the root; `data get` makes the first
  int64_t train = 0, test = 0;       // images of the official set; 0: not checked
  std::vector<RemoteFile> files;     // archives (.tar.gz, .zip) are unpacked
  std::string by_hand;               // where to get files that have no URL
};

const std::vector<ImageSetEntry>& image_catalogue();
// Null where no image set has that name.
const ImageSetEntry* find_image_set(const std::string& name);

// The setting, else $DDAEBM_DATA, else ~/.cache/ddaebm.
std::filesystem::path data_root(const std::string& setting);
// The set's folder under the root, or nothing.
std::optional<std::filesystem::path> locate(const ImageSetEntry& entry,
                                            const std::filesystem::path& root);

}  // namespace ddaebm
