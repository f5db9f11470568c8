#include "ddaebm/io/event_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <vector>

#include <unistd.h>

#include "ddaebm/error.h"
#include "ddaebm/io/image.h"

// A record: length (8 bytes), its checksum (4), the event, its checksum (4). An event is a protocol
// buffer of TensorFlow's event.proto and summary.proto, whose field numbers stand below.
namespace ddaebm {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// TensorFlow stores checksums so, as one of data that hold their own checksum says little.
std::string masked_checksum(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return little_endian((crc >> 15 | crc << 17) + 0xa282ead8U);
}

// Fields of a protocol buffer.
std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes += static_cast<char>(value);
}
std::string key(int field, unsigned kind) {
  return varint(static_cast<unsigned>(field) << 3 | kind);
}
std::string integer(int field, int64_t value) {
  return key(field, 0) + varint(static_cast<uint64_t>(value));
}
std::string real(int field, double value) {
  return key(field, 1) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string real32(int field, float value) {
  return key(field, 5) + little_endian(std::bit_cast<uint32_t>(value));
}
std::string text(int field, const std::string& bytes) {
  return key(field, 2) + varint(bytes.size()) + bytes;
}
std::string reals(int field, const std::vector<double>& values) {
  std::string packed;
  for (const double value : values) packed += little_endian(std::bit_cast<uint64_t>(value));
  return text(field, packed);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      uint32_t rest = i;
      for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ (rest & 1 ? 0x82f63b78U : 0);
      made[i] = rest;
    }
    return made;
  }();
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step) {
  // The newest name is read last, so that what it says of older files holds.
  const auto stamp = std::chrono::duration_cast<std::chrono::microseconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{:06}.{}.ddaebm", stamp / 1000000,
                               stamp % 1000000, ::getpid());
  out_.open(path_, std::ios::binary | std::ios::app);
  add_event(real(1, now()) + text(3, "brain.Event:2"));
  // session_log of status START.
  add_event(real(1, now()) + integer(2, first_step) + text(7, integer(1, 1)));
}

void EventFile::scalar(const std::string& tag, int64_t step, double value) {
  add_value(step, text(1, tag) + real32(2, static_cast<float>(value)));
}

void EventFile::picture(const std::string& tag, int64_t step, const torch::Tensor& picture) {
  constexpr int64_t kRgb = 3;
  add_value(step, text(1, tag) + text(4, integer(1, picture.size(0)) + integer(2, picture.size(1)) +
                                             integer(3, kRgb) + text(4, encode_png(picture))));
}

void EventFile::histogram(const std::string& tag, int64_t step, std::span<const double> values) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value); });
  if (finite.empty()) return;
  const auto [low, high] = std::minmax_element(finite.begin(), finite.end());
  constexpr size_t kBuckets = 30;
  const double width = (*high - *low) / kBuckets;
  std::vector<double> counts(kBuckets);
  std::vector<double> limits(kBuckets);
  for (size_t i = 0; i < kBuckets; ++i) limits[i] = *low + width * static_cast<double>(i + 1);
  limits.back() = *high;
  double sum = 0;
  double squares = 0;
  for (const double value : finite) {
    const auto bucket = width > 0 ? static_cast<size_t>((value - *low) / width) : 0;
    ++counts[std::min(bucket, kBuckets - 1)];
    sum += value;
    squares += value * value;
  }
  add_value(step,
            text(1, tag) + text(5, real(1, *low) + real(2, *high) +
                                       real(3, static_cast<double>(finite.size())) + real(4, sum) +
                                       real(5, squares) + reals(6, limits) + reals(7, counts)));
}

void EventFile::add_value(int64_t step, const std::string& value) {
  add_event(real(1, now()) + integer(2, step) + text(5, text(1, value)));
}

void EventFile::add_event(const std::string& event) {
  const std::string length = little_endian(uint64_t{event.size()});
  out_ << length + masked_checksum(length) + event + masked_checksum(event) << std::flush;
  if (!out_) fail("{}: cannot write; is the disk full?", path_.string());
}

}  // namespace ddaebm
