#include "ddaebm/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/sha256.h"

// The format: the header's length (uint64), a JSON header padded with spaces, then the tensors'
// bytes without gaps. Offsets count from the end of the header.
namespace ddaebm {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr uint64_t kMaxHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct Dtype {
  const char* name;
  torch::ScalarType type;
};
constexpr std::array kDtypes{
    Dtype{"F64", torch::kFloat64},   Dtype{"F32", torch::kFloat32}, Dtype{"F16", torch::kFloat16},
    Dtype{"BF16", torch::kBFloat16}, Dtype{"I64", torch::kInt64},   Dtype{"I32", torch::kInt32},
    Dtype{"I16", torch::kInt16},     Dtype{"I8", torch::kInt8},     Dtype{"U8", torch::kUInt8},
    Dtype{"BOOL", torch::kBool},
};

struct Entry {
  std::string name;
  torch::ScalarType type;
  std::vector<int64_t> shape;
  uint64_t begin;
  uint64_t end;
};

// Parses without following hostile nesting, and refuses what the parser lets pass: repeated keys.
json parse_header(const std::string& file, std::string_view text) {
  constexpr int kDeepestContainer = 2;  // header { tensor { shape [
  std::array<std::set<std::string>, kDeepestContainer + 2> keys;
  const auto check = [&](int depth, json::parse_event_t event, const json& parsed) {
    const bool object = event == json::parse_event_t::object_start;
    if ((object || event == json::parse_event_t::array_start) && depth > kDeepestContainer) {
      fail("{}: the safetensors header is nested too deeply", file);
    }
    if (object) keys[depth + 1].clear();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[depth].insert(key).second)
        fail("{}: {} stands twice in the header", file, excerpt(key));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    fail("{}: the safetensors header is not valid JSON (at byte {})", file, error.byte);
  } catch (const json::out_of_range&) {
    fail("{}: the safetensors header has a number beyond float64", file);
  }
}

std::vector<int64_t> read_integers(const std::string& where, const char* key, const json& list) {
  std::vector<int64_t> integers;
  for (const json& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX) {
      fail("{}: '{}' holds something other than whole numbers from 0 to 2^63 - 1", where, key);
    }
    integers.push_back(item.get<int64_t>());
  }
  return integers;
}

Entry read_entry(const std::string& file, const std::string& name, const json& info,
                 uint64_t data_size) {
  const std::string where = fmt::format("{}: tensor {}", file, excerpt(name));
  const auto field = [&](const char* key, json::value_t type) -> const json& {
    if (!info.is_object() || !info.contains(key) || info[key].type() != type) {
      fail("{}: '{}' is missing or of the wrong type", where, key);
    }
    return info[key];
  };
  const auto& dtype = field("dtype", json::value_t::string).get_ref<const std::string&>();
  const auto* known = std::find_if(kDtypes.begin(), kDtypes.end(),
                                   [&](const Dtype& candidate) { return candidate.name == dtype; });
  if (known == kDtypes.end()) {
    fail("{}: type {} is not supported; convert it to F32, say", where, excerpt(dtype));
  }
  const auto shape = read_integers(where, "shape", field("shape", json::value_t::array));
  const auto offsets =
      read_integers(where, "data_offsets", field("data_offsets", json::value_t::array));
  if (offsets.size() != 2) fail("{}: {} data_offsets, 2 are wanted", where, offsets.size());
  const auto begin = static_cast<uint64_t>(offsets[0]);
  const auto end = static_cast<uint64_t>(offsets[1]);
  if (begin > end || end > data_size) {
    fail("{}: bytes {} to {} are not within the file's {} bytes of data; is it cut short?", where,
         begin, end, data_size);
  }
  const auto wanted = packed_size(shape, known->type);
  if (!wanted) fail("{}: the shape is larger than a tensor can be", where);
  if (*wanted != end - begin) {
    fail("{}: its type and shape take {} bytes, its offsets give {}", where, *wanted, end - begin);
  }
  return {name, known->type, shape, begin, end};
}

const char* dtype_name(const std::string& where, torch::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return dtype.name;
  }
  fail("{}: type {} has no place in a safetensors file; convert it first", where,
       c10::toString(type));
}

std::string_view text_of(const Sha256& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

Safetensors read_safetensors(const std::filesystem::path& path) {
  const std::string where = path.string();
  const std::string file = read_file(path);
  if (file.size() < kLengthBytes) {
    fail("{}: {} bytes are too few for a safetensors file", where, file.size());
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), kLengthBytes);
  const uint64_t limit = std::min<uint64_t>(file.size() - kLengthBytes, kMaxHeader);
  if (header_size > limit) {
    fail("{}: a header of {} bytes where at most {} can be; not a safetensors file, or cut short",
         where, header_size, limit);
  }
  const std::string_view content = std::string_view(file).substr(kLengthBytes);
  const std::string_view data = content.substr(header_size);
  const json header = parse_header(where, content.substr(0, header_size));
  if (!header.is_object()) fail("{}: the safetensors header is not a JSON object", where);

  Safetensors result;
  std::vector<Entry> entries;
  for (const auto& [name, info] : header.items()) {
    if (name != kMetadata) {
      entries.push_back(read_entry(where, name, info, data.size()));
      continue;
    }
    if (!info.is_object()) fail("{}: {} is not a JSON object", where, kMetadata);
    for (const auto& [key, text] : info.items()) {
      if (!text.is_string()) fail("{}: {} {} is not text", where, kMetadata, excerpt(key));
      result.metadata.emplace(key, text.get<std::string>());
    }
  }

  // Each tensor begins where the one before ends, so none overlap and nothing hides between them.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      fail("{}: tensor {} begins at byte {}, where the one before ends at {}", where,
           excerpt(entry.name), entry.begin, covered);
    }
    covered = entry.end;
    result.tensors.emplace(
        entry.name,
        from_packed(data.substr(entry.begin, entry.end - entry.begin), entry.shape, entry.type));
  }
  if (covered != data.size()) {
    fail("{}: the tensors take {} bytes of data, the file has {}", where, covered, data.size());
  }
  if (result.tensors.contains(kChecksum)) {
    const auto before = file.size() - std::min(file.size(), std::tuple_size_v<Sha256>);
    const auto right = sha256(std::string_view(file).substr(0, before));
    if (std::string_view(file).substr(before) != text_of(right)) {
      fail("{}: its checksum is not that of its content; the file is damaged", where);
    }
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path, const Safetensors& content,
                       bool with_checksum) {
  const std::string where = path.string();
  json header = json::object();
  if (!content.metadata.empty()) header[kMetadata] = content.metadata;
  std::vector<torch::Tensor> tensors;
  uint64_t size = 0;
  for (const auto& [name, tensor] : content.tensors) {
    if (name == kMetadata) fail("{}: a tensor cannot be named {}", where, kMetadata);
    TORCH_CHECK(tensor.defined(), "write_safetensors: tensor '", name, "' is undefined");
    tensors.push_back(packed(tensor));
    const uint64_t begin = size;
    size += tensors.back().nbytes();
    header[name] = {{"dtype", dtype_name(where, tensor.scalar_type())},
                    {"shape", tensors.back().sizes().vec()},
                    {"data_offsets", {begin, size}}};
  }
  if (with_checksum) {
    TORCH_CHECK(content.tensors.empty() || content.tensors.rbegin()->first < kChecksum,
                "write_safetensors: a name stands behind that of the checksum");
    const auto bytes = std::tuple_size_v<Sha256>;
    header[kChecksum] = {
        {"dtype", "U8"}, {"shape", {bytes}}, {"data_offsets", {size, size + bytes}}};
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const json::type_error&) {
    fail("{}: a tensor's name or the metadata is not UTF-8", where);
  }
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  if (text.size() > kMaxHeader) {
    fail("{}: a header of {} bytes, at most {} can be written", where, text.size(), kMaxHeader);
  }
  const uint64_t header_size = text.size();

  std::string file;
  file.reserve(kLengthBytes + header_size + size + std::tuple_size_v<Sha256>);
  file.append(reinterpret_cast<const char*>(&header_size), kLengthBytes).append(text);
  for (const torch::Tensor& tensor : tensors) file.append(bytes_of(tensor));
  if (with_checksum) file.append(text_of(sha256(file)));
  write_file(path, file);
}

}  // namespace ddaebm
