#include "ddaebm/io/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <zip.h>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/zip.h"

// The format: magic, version (2 bytes), the header's length (2 bytes in version 1, 4 from 2 on), a
// Python dictionary padded with spaces to a multiple of 64 and ended by a newline, the data.
namespace ddaebm {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::string_view kSuffix = ".npy";

struct Dtype {
  const char* descr;
  torch::ScalarType type;
};
constexpr std::array kDtypes{
    Dtype{"<f8", torch::kFloat64}, Dtype{"<f4", torch::kFloat32}, Dtype{"<f2", torch::kFloat16},
    Dtype{"|b1", torch::kBool},    Dtype{"|i1", torch::kInt8},    Dtype{"|u1", torch::kUInt8},
    Dtype{"<i2", torch::kInt16},   Dtype{"<i4", torch::kInt32},   Dtype{"<i8", torch::kInt64},
};

struct Header {
  std::string descr;
  bool fortran_order;
  std::vector<int64_t> shape;
};

// Reads the dictionary: its three keys once each, in any order, and nothing else.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Header parse() {
    std::optional<std::string> descr;
    std::optional<bool> fortran_order;
    std::optional<std::vector<int64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr) {
        if (accept('[')) fail("{}: a structured array; save each field on its own", where_);
        descr = string();
      } else if (key == "fortran_order" && !fortran_order) {
        fortran_order = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        malformed();
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_spaces();
    if (at_ != text_.size() || !descr || !fortran_order || !shape) malformed();
    return {*descr, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void malformed() const {
    fail("{}: the NumPy header is malformed at its character {}", where_, at_);
  }

  void skip_spaces() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }

  bool accept(char wanted) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) malformed();
  }

  bool accept_word(std::string_view word) {
    skip_spaces();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string string() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) malformed();
    const auto value = text_.substr(at_, end - at_);
    at_ = end + 1;
    return std::string(value);
  }

  bool boolean() {
    if (accept_word("True")) return true;
    if (!accept_word("False")) malformed();
    return false;
  }

  // (), (3,), (2, 3) or (2, 3,): one size needs its comma.
  std::vector<int64_t> tuple() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      skip_spaces();
      int64_t size = 0;
      const auto [end, error] =
          std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc()) malformed();
      at_ = static_cast<size_t>(end - text_.data());
      sizes.push_back(size);
      if (accept(',')) continue;
      if (sizes.size() == 1) malformed();
      expect(')');
      break;
    }
    return sizes;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

torch::ScalarType scalar_type(const std::string& where, const std::string& descr) {
  if (const auto type = numpy_type(descr)) return *type;
  if (descr.starts_with('>')) {
    fail("{}: type {} is big endian; save array.astype(array.dtype.newbyteorder('<'))", where,
         excerpt(descr));
  }
  fail("{}: type {} is not supported; save array.astype('<f4'), say", where, excerpt(descr));
}

struct ZipDelete {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using ZipArchive = std::unique_ptr<zip_t, ZipDelete>;
using ZipSource = std::unique_ptr<zip_source_t, ZipDelete>;

// The bytes of the archive that `source` holds once it is closed.
std::string contents(zip_source_t* source) {
  zip_stat_t status;
  zip_stat_init(&status);
  if (zip_source_stat(source, &status) != 0 || zip_source_open(source) != 0) return {};
  std::string bytes(status.size, '\0');
  const zip_int64_t got = zip_source_read(source, bytes.data(), bytes.size());
  zip_source_close(source);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

}  // namespace

std::optional<torch::ScalarType> numpy_type(std::string_view descr) {
  for (const Dtype& dtype : kDtypes) {
    if (descr == dtype.descr) return dtype.type;
  }
  return std::nullopt;
}

torch::Tensor from_numpy(std::string_view bytes, std::vector<int64_t> shape, torch::ScalarType type,
                         bool fortran_order) {
  if (!fortran_order) return from_packed(bytes, shape, type);
  std::reverse(shape.begin(), shape.end());
  const torch::Tensor transposed = from_packed(bytes, shape, type);
  std::vector<int64_t> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return transposed.permute(order).contiguous();
}

torch::Tensor parse_npy(const std::string& where, std::string_view bytes) {
  const size_t prefix = kMagic.size() + 2;
  if (bytes.size() < prefix || !bytes.starts_with(kMagic)) fail("{}: not a NumPy array", where);
  const int version = static_cast<unsigned char>(bytes[kMagic.size()]);
  if (version < 1 || version > 3) {
    fail("{}: version {} of the NumPy format, 1 to 3 are known", where, version);
  }
  bytes.remove_prefix(prefix);

  const size_t length_bytes = version == 1 ? 2 : 4;
  if (bytes.size() < length_bytes) fail("{}: the NumPy header is cut short", where);
  size_t header_size = 0;
  for (size_t i = 0; i < length_bytes; ++i) {
    header_size |= size_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  bytes.remove_prefix(length_bytes);
  if (header_size > bytes.size()) {
    fail("{}: a header of {} bytes where {} remain; is it cut short?", where, header_size,
         bytes.size());
  }
  const Header header = HeaderParser(bytes.substr(0, header_size), where).parse();
  bytes.remove_prefix(header_size);

  const torch::ScalarType type = scalar_type(where, header.descr);
  const auto wanted = packed_size(header.shape, type);
  if (!wanted) fail("{}: the shape is not one that a tensor can have", where);
  if (*wanted != bytes.size()) {
    fail("{}: type and shape take {} bytes of data, there are {}", where, *wanted, bytes.size());
  }
  return from_numpy(bytes, header.shape, type, header.fortran_order);
}

std::string format_npy(const std::string& where, const torch::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "format_npy: the tensor is undefined");
  const auto* dtype = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& candidate) {
    return candidate.type == tensor.scalar_type();
  });
  if (dtype == kDtypes.end()) {
    fail("{}: type {} is none of NumPy's; convert it to float32, say", where,
         c10::toString(tensor.scalar_type()));
  }
  std::string shape;
  for (const int64_t size : tensor.sizes()) shape += fmt::format("{}, ", size);
  if (tensor.dim() > 1) shape.resize(shape.size() - 2);
  if (tensor.dim() == 1) shape.pop_back();
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                   dtype->descr, shape);
  constexpr size_t kAlignment = 64;
  const size_t prefix = kMagic.size() + 4;  // version 1.0 and a length of 2 bytes
  const size_t used = (prefix + header.size() + 1) % kAlignment;
  header.append((kAlignment - used) % kAlignment, ' ') += '\n';

  const torch::Tensor data = packed(tensor);
  std::string bytes(kMagic);
  bytes.append({'\x01', '\x00', static_cast<char>(header.size() & 0xff),
                static_cast<char>(header.size() >> 8)});
  return bytes.append(header).append(bytes_of(data));
}

torch::Tensor read_npy(const std::filesystem::path& path) {
  return parse_npy(path.string(), read_file(path));
}

void write_npy(const std::filesystem::path& path, const torch::Tensor& tensor) {
  write_file(path, format_npy(path.string(), tensor));
}

std::map<std::string, torch::Tensor> read_npz(const std::filesystem::path& path) {
  ZipReader archive(path);
  std::map<std::string, torch::Tensor> arrays;
  for (const std::string& name : archive.names()) {
    if (!name.ends_with(kSuffix)) continue;
    const std::string where = fmt::format("{}: {}", path.string(), excerpt(name));
    arrays.emplace(name.substr(0, name.size() - kSuffix.size()),
                   parse_npy(where, archive.read(name)));
  }
  if (arrays.empty()) fail("{}: the archive holds no NumPy arrays", path.string());
  return arrays;
}

void write_npz(const std::filesystem::path& path,
               const std::map<std::string, torch::Tensor>& arrays) {
  if (arrays.empty()) fail("{}: no arrays to write", path.string());
  zip_error_t error;
  zip_error_init(&error);
  const ZipSource target(zip_source_buffer_create(nullptr, 0, 0, &error));
  TORCH_CHECK(target, "write_npz: ", zip_error_strerror(&error));
  ZipArchive archive(zip_open_from_source(target.get(), ZIP_TRUNCATE, &error));
  TORCH_CHECK(archive, "write_npz: ", zip_error_strerror(&error));
  zip_source_keep(target.get());  // the archive frees its own claim

  std::list<std::string> files;  // libzip reads them when it closes
  for (const auto& [name, tensor] : arrays) {
    const std::string where = fmt::format("{}: {}", path.string(), excerpt(name));
    const std::string& bytes = files.emplace_back(format_npy(where, tensor));
    ZipSource source(zip_source_buffer(archive.get(), bytes.data(), bytes.size(), 0));
    const zip_int64_t index =
        source ? zip_file_add(archive.get(), (name + std::string(kSuffix)).c_str(), source.get(),
                              ZIP_FL_ENC_UTF_8)
               : -1;
    if (index < 0) fail("{}: cannot be added: {}", where, zip_strerror(archive.get()));
    (void)source.release();  // the archive owns it now
    const auto added = static_cast<zip_uint64_t>(index);
    zip_set_file_compression(archive.get(), added, ZIP_CM_STORE, 0);
    // 1 January 1980, so that the same arrays give the same bytes.
    zip_file_set_dostime(archive.get(), added, 0, 0x21, 0);
  }
  if (zip_close(archive.get()) != 0) {
    fail("{}: cannot be packed: {}", path.string(), zip_strerror(archive.get()));
  }
  (void)archive.release();  // closing freed it
  const std::string bytes = contents(target.get());
  TORCH_CHECK(!bytes.empty(), "write_npz: libzip gave no archive");
  write_file(path, bytes);
}

}  // namespace ddaebm
