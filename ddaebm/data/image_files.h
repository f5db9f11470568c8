#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddaebm {

// Encoded pictures that can be had one by one, in any order: the files of a folder, the values of
// an LMDB, the members of tar shards. Opening one finds out where each picture lies; none is read.
class ImageFiles {
 public:
  virtual ~ImageFiles() = default;
  virtual int64_t size() const = 0;
  // Names picture i in messages.
  virtual std::string name(int64_t i) const = 0;
  // Picture i as it is stored; many threads may ask at once.
  virtual std::string bytes(int64_t i) const = 0;
};

using Warn = std::function<void(const std::string&)>;

// No picture is larger as a file; what claims to be is not read.
inline constexpr uint64_t kMaxEncoded = uint64_t{256} << 20;

// ".jpg", ".JPEG", ".png", ".webp".
bool has_image_ending(const std::filesystem::path& path);

// The files named, in the order given.
std::unique_ptr<ImageFiles> open_image_list(std::vector<std::filesystem::path> paths);
// Every picture of a folder and of the folders in it, sorted by path.
std::unique_ptr<ImageFiles> open_image_folder(const std::filesystem::path& folder);
// The values of an LMDB folder (data.mdb) in the order of their keys, as in LSUN.
std::unique_ptr<ImageFiles> open_lmdb(const std::filesystem::path& folder);
// The pictures of tar files, shard by shard in the order given; other members are passed over. A
// shard that is cut gives what is whole in it, and a warning. Compressed shards (.tar.gz) are kept
// in memory, as they allow no access out of order.
std::unique_ptr<ImageFiles> open_tar(const std::vector<std::filesystem::path>& shards,
                                     const Warn& warn);

// The pictures of tar shards in the order in which training takes them, in bounded memory. Shards
// are dealt to `lanes`; each lane reads its own from start to end, in another order every epoch,
// and shuffles `window` pictures at a time. Picture lanes * k + l is the k-th of lane l, without
// end: a function of the seed alone. Quick where each lane's are asked for nearly in turn. size()
// is that of an epoch.
std::unique_ptr<ImageFiles> open_tar_in_order(const std::vector<std::filesystem::path>& shards,
                                              int64_t lanes, int64_t window, uint64_t seed,
                                              const Warn& warn);

}  // namespace ddaebm
