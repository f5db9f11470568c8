#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <archive.h>
#include <archive_entry.h>
#include <lmdb.h>
#include <turbojpeg.h>
#include <webp/encode.h>
#include <zlib.h>

#include <torch/types.h>

#include "ddaebm/io/bytes.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"

// Files in every format that the image readers know, made on the spot.
namespace ddaebm {

// As write_file, without waiting for the disk.
inline void put_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

using NamedFiles = std::vector<std::pair<std::string, std::string>>;

// A picture [3, height, width] that no other number gives.
inline torch::Tensor picture(int64_t number, int64_t height = 8, int64_t width = 8) {
  const auto y = torch::arange(height).view({1, -1, 1});
  const auto x = torch::arange(width).view({1, 1, -1});
  const auto c = torch::arange(3).view({-1, 1, 1});
  return ((x * 5 + y * 11 + c * 60 + number * 37) % 256).to(torch::kUInt8);
}

inline std::string png_of(const torch::Tensor& pixels) {
  return encode_png(pixels.permute({1, 2, 0}).contiguous());
}

inline std::string jpeg_of(const torch::Tensor& pixels) {
  const auto rgb = pixels.permute({1, 2, 0}).contiguous();
  tjhandle handle = tjInitCompress();
  unsigned char* out = nullptr;
  unsigned long size = 0;
  tjCompress2(handle, rgb.data_ptr<uint8_t>(), static_cast<int>(rgb.size(1)), 0,
              static_cast<int>(rgb.size(0)), TJPF_RGB, &out, &size, TJSAMP_444, 95, 0);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  return bytes;
}

inline std::string webp_of(const torch::Tensor& pixels) {
  const auto rgb = pixels.permute({1, 2, 0}).contiguous();
  uint8_t* out = nullptr;
  const size_t size =
      WebPEncodeLosslessRGB(rgb.data_ptr<uint8_t>(), static_cast<int>(rgb.size(1)),
                            static_cast<int>(rgb.size(0)), static_cast<int>(rgb.size(1) * 3), &out);
  std::string bytes(reinterpret_cast<char*>(out), size);
  WebPFree(out);
  return bytes;
}

// n pictures of a folder's or shard's files: 000.png, 001.png, ...
inline NamedFiles numbered_pngs(int64_t n, int64_t height = 8, int64_t width = 8) {
  NamedFiles files;
  for (int64_t i = 0; i < n; ++i) {
    std::string name = std::to_string(1000 + i).substr(1) + ".png";
    files.emplace_back(std::move(name), png_of(picture(i, height, width)));
  }
  return files;
}

inline void write_folder(const std::filesystem::path& folder, const NamedFiles& files) {
  for (const auto& [name, bytes] : files) {
    std::filesystem::create_directories((folder / name).parent_path());
    put_file(folder / name, bytes);
  }
}

// A tar file, gzipped where its name says so; a zip file where that ends it.
inline void write_archive(const std::filesystem::path& path, const NamedFiles& files,
                          const std::string& link_to = "") {
  archive* a = archive_write_new();
  if (path.extension() == ".zip") {
    archive_write_set_format_zip(a);
  } else {
    archive_write_set_format_pax_restricted(a);
    if (path.extension() == ".gz") archive_write_add_filter_gzip(a);
  }
  archive_write_open_filename(a, path.c_str());
  for (const auto& [name, bytes] : files) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_perm(entry, 0644);
    if (link_to.empty()) {
      archive_entry_set_filetype(entry, AE_IFREG);
      archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    } else {
      archive_entry_set_filetype(entry, AE_IFLNK);
      archive_entry_set_symlink(entry, link_to.c_str());
    }
    archive_write_header(a, entry);
    archive_write_data(a, bytes.data(), bytes.size());
    archive_entry_free(entry);
  }
  archive_write_free(a);
}

inline void write_lmdb(const std::filesystem::path& folder, const NamedFiles& values) {
  std::filesystem::create_directories(folder);
  MDB_env* env = nullptr;
  MDB_txn* transaction = nullptr;
  MDB_dbi database = 0;
  const auto check = [](int code) {
    if (code != 0) throw std::runtime_error(mdb_strerror(code));
  };
  check(mdb_env_create(&env));
  check(mdb_env_set_mapsize(env, size_t{64} << 20));
  check(mdb_env_open(env, folder.c_str(), MDB_NOSYNC, 0644));
  check(mdb_txn_begin(env, nullptr, 0, &transaction));
  check(mdb_dbi_open(transaction, nullptr, 0, &database));
  for (auto [name, bytes] : values) {
    MDB_val key{name.size(), name.data()};
    MDB_val data{bytes.size(), bytes.data()};
    check(mdb_put(transaction, database, &key, &data, 0));
  }
  check(mdb_txn_commit(transaction));
  mdb_env_close(env);
}

inline std::string idx_of(const torch::Tensor& bytes) {
  std::string out = {0, 0, 8, static_cast<char>(bytes.dim())};
  for (const int64_t size : bytes.sizes()) {
    for (const int shift : {24, 16, 8, 0}) out += static_cast<char>(size >> shift & 0xff);
  }
  return out.append(bytes_of(packed(bytes)));
}

inline void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb1");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
}

// Records of `labels` bytes each and 3072 of pixels.
inline std::string cifar_of(const torch::Tensor& pixels, const torch::Tensor& labels) {
  const int64_t n = pixels.size(0);
  const auto label_bytes = labels.to(torch::kUInt8).view({n, -1});
  return std::string(bytes_of(packed(torch::cat({label_bytes, pixels.reshape({n, -1})}, 1))));
}

}  // namespace ddaebm
