#include "ddaebm/io/torch_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/zip.h"

// An archive holds NAME/data.pkl, whose persistent ids name the storages NAME/data/KEY, and since
// PyTorch 2.1 NAME/byteorder. A file of before 1.6 is five pickles (a magic number, a version,
// facts about the machine, the content, the storages' keys), then each storage: how many elements,
// and their bytes, always little endian.
namespace ddaebm {
namespace {

constexpr uint64_t kMaxPickle = uint64_t{256} << 20;  // bytes of data.pkl
constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kLegacyVersion = 1001;

struct StorageType {
  std::string_view name;
  torch::ScalarType type;
};
constexpr std::array kStorageTypes{
    StorageType{"torch.FloatStorage", torch::kFloat32},
    StorageType{"torch.DoubleStorage", torch::kFloat64},
    StorageType{"torch.HalfStorage", torch::kFloat16},
    StorageType{"torch.BFloat16Storage", torch::kBFloat16},
    StorageType{"torch.LongStorage", torch::kInt64},
    StorageType{"torch.IntStorage", torch::kInt32},
    StorageType{"torch.ShortStorage", torch::kInt16},
    StorageType{"torch.CharStorage", torch::kInt8},
    StorageType{"torch.ByteStorage", torch::kUInt8},
    StorageType{"torch.BoolStorage", torch::kBool},
};

struct StorageId {
  std::string key;
  torch::ScalarType type;
  int64_t size;    // elements
  uint64_t bytes;  // of all of them
};

// ('storage', type, key, device, elements), and before 1.6 what the storage is a view of.
StorageId parse_id(const std::string& where, const PickleValue& id) {
  const auto* parts = id.list();
  if (parts != nullptr && !parts->empty() && (*parts)[0].text() == "module") {
    fail("{}: a network saved whole, code and all; save its state_dict() instead", where);
  }
  if (parts == nullptr || parts->size() < 5 || (*parts)[0].text() != "storage" ||
      (*parts)[1].object() == nullptr || !(*parts)[2].text() || !(*parts)[4].integer()) {
    fail("{}: a storage is not named as PyTorch does it; is the file damaged?", where);
  }
  if (parts->size() > 5 && !(*parts)[5].is_none()) {
    fail("{}: a storage that is a view of another; save the file again with PyTorch 0.4 or later",
         where);
  }
  const std::string& type = (*parts)[1].object()->name;
  const auto* found = std::find_if(kStorageTypes.begin(), kStorageTypes.end(),
                                   [&](const StorageType& known) { return known.name == type; });
  if (found == kStorageTypes.end()) {
    fail("{}: a {} is not supported; save tensor.float(), say", where, excerpt(type));
  }
  const int64_t size = *(*parts)[4].integer();
  const auto bytes = packed_size({size}, found->type);
  if (!bytes) fail("{}: a storage of {} elements; the file is damaged", where, size);
  return {std::string(*(*parts)[2].text()), found->type, size, *bytes};
}

// Gives each storage once. `read` makes it.
class Storages {
 public:
  using Read = std::function<torch::Tensor(const StorageId&)>;
  Storages(const std::string& where, Read read) : where_(where), read_(std::move(read)) {}

  PickleValue load(const PickleValue& id_value) {
    const StorageId id = parse_id(where_, id_value);
    auto found = values_.find(id.key);
    if (found == values_.end()) found = values_.emplace(id.key, PickleValue(read_(id))).first;
    const torch::Tensor& storage = *found->second.tensor();
    if (storage.scalar_type() != id.type || storage.numel() != id.size) {
      fail("{}: storage {} has two types or sizes; the file is damaged", where_, excerpt(id.key));
    }
    return found->second;
  }

  const std::map<std::string, PickleValue>& values() const { return values_; }

 private:
  const std::string& where_;
  Read read_;
  std::map<std::string, PickleValue> values_;
};

void swap_bytes(std::string& bytes, size_t element_size) {
  for (size_t at = 0; at + element_size <= bytes.size(); at += element_size) {
    std::reverse(bytes.data() + at, bytes.data() + at + element_size);
  }
}

Pickle read_archive(const std::filesystem::path& path) {
  ZipReader archive(path);
  constexpr std::string_view kPickle = "data.pkl";
  const auto& names = archive.names();
  const auto pickle_name = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return name.ends_with(kPickle) && name.find('/') == name.size() - kPickle.size() - 1;
  });
  if (pickle_name == names.end()) {
    fail("{}: a zip archive without data.pkl; expected what torch.save writes", path.string());
  }
  const std::string root = pickle_name->substr(0, pickle_name->size() - kPickle.size());
  if (archive.contains(root + "constants.pkl")) {
    fail("{}: a TorchScript archive, which holds code; save the network's state_dict() instead",
         path.string());
  }
  bool big_endian = false;
  if (archive.contains(root + "byteorder")) {
    const std::string order = archive.read(root + "byteorder");
    if (order != "little" && order != "big") {
      fail("{}: byte order {}, expected little or big", path.string(), excerpt(order));
    }
    big_endian = order == "big";
  }

  const std::string where = fmt::format("{}: {}", path.string(), excerpt(*pickle_name));
  Storages storages(where, [&](const StorageId& id) {
    const std::string name = root + "data/" + id.key;
    if (archive.contains(name) && archive.size(name) != id.bytes) {
      fail("{}: storage {} holds {} bytes, expected {}; the file is damaged", where,
           excerpt(id.key), archive.size(name), id.bytes);
    }
    std::string bytes = archive.read(name);
    if (big_endian) swap_bytes(bytes, c10::elementSize(id.type));
    return from_packed(bytes, {id.size}, id.type);
  });
  if (archive.size(*pickle_name) > kMaxPickle) {
    fail("{}: {} bytes, more than any checkpoint's", where, archive.size(*pickle_name));
  }
  const std::string file = archive.read(*pickle_name);
  std::string_view bytes = file;
  return take_pickle(where, bytes, [&](const PickleValue& id) { return storages.load(id); });
}

Pickle read_legacy(const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string file = read_file(path);
  std::string_view bytes = file;
  if (!bytes.starts_with('\x80')) {
    fail("{}: neither a zip archive nor a pickle; expected what torch.save writes", where);
  }
  const Pickle magic = take_pickle(where, bytes);
  const auto* number = magic.value.object();
  if (number == nullptr || number->name != "builtins.int" || number->args.size() != 1 ||
      number->args[0].text() != kLegacyMagic) {
    fail("{}: a pickle, but not one of torch.save, which starts with a magic number", where);
  }
  const Pickle version = take_pickle(where, bytes);
  if (version.value.integer() != kLegacyVersion) {
    fail("{}: not version {} of torch.save's format; save the file again with a newer PyTorch",
         where, kLegacyVersion);
  }
  const Pickle machine = take_pickle(where, bytes);

  uint64_t left = bytes.size();  // for storages; they come after the views of them
  Storages storages(where, [&](const StorageId& id) {
    if (id.bytes > left) {
      fail("{}: storage {} of {} bytes where {} remain; is the file cut short?", where,
           excerpt(id.key), id.bytes, left);
    }
    left -= id.bytes;
    return torch::empty({id.size}, id.type);
  });
  Pickle content =
      take_pickle(where, bytes, [&](const PickleValue& id) { return storages.load(id); });
  const Pickle keys = take_pickle(where, bytes);
  if (keys.value.list() == nullptr) fail("{}: no list of storages follows the content", where);

  std::set<std::string> filled;
  for (const PickleValue& key : *keys.value.list()) {
    const auto storage = storages.values().find(std::string(key.text().value_or("")));
    if (storage == storages.values().end() || !filled.insert(storage->first).second) {
      fail("{}: storage {} is listed twice or not used", where, excerpt(key.text().value_or("")));
    }
    torch::Tensor tensor = *storage->second.tensor();
    int64_t size = 0;
    if (bytes.size() < sizeof(size)) fail("{}: the storages are cut short", where);
    std::memcpy(&size, bytes.data(), sizeof(size));
    bytes.remove_prefix(sizeof(size));
    if (size != tensor.numel() || tensor.nbytes() > bytes.size()) {
      fail("{}: storage {} has {} elements, expected {}, in {} bytes; is the file cut short?",
           where, excerpt(storage->first), size, tensor.numel(), bytes.size());
    }
    tensor.copy_(from_packed(bytes.substr(0, tensor.nbytes()), {size}, tensor.scalar_type()));
    bytes.remove_prefix(tensor.nbytes());
  }
  if (filled.size() != storages.values().size()) {
    fail("{}: {} of {} storages have no data; is the file damaged?", where,
         storages.values().size() - filled.size(), storages.values().size());
  }

  std::set<std::string> inert;
  for (const Pickle* pickle : {&magic, &version, &machine, &std::as_const(content), &keys}) {
    inert.insert(pickle->inert_globals.begin(), pickle->inert_globals.end());
  }
  content.inert_globals.assign(inert.begin(), inert.end());
  return content;
}

}  // namespace

Pickle read_torch_checkpoint(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 4> start{};
  file.read(start.data(), start.size());
  const bool zipped = std::string_view(start.data(), start.size()) == "PK\3\4";
  return zipped ? read_archive(path) : read_legacy(path);
}

}  // namespace ddaebm
