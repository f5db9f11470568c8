#include "ddaebm/io/safetensors.h"

#include <cstdint>
#include <cstring>
#include <fstream>

#include "refusals.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

std::string with_header(const std::string& header, const std::string& data = "") {
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return file + header + data;
}

Safetensors parse(const std::string& bytes) {
  const TempDir folder;
  std::ofstream(folder.path() / "file", std::ios::binary) << bytes;
  return read_safetensors(folder.path() / "file");
}

void expect_same(const Safetensors& found, const Safetensors& wanted) {
  EXPECT_EQ(found.metadata, wanted.metadata);
  ASSERT_EQ(found.tensors.size(), wanted.tensors.size());
  for (const auto& [name, tensor] : wanted.tensors) {
    ASSERT_TRUE(found.tensors.contains(name)) << name;
    const torch::Tensor& other = found.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(other.equal(tensor)) << name;
  }
}

TEST(Safetensors, RoundTripOfEveryType) {
  Safetensors content;
  content.metadata = {{"note", "quotes \" and \n lines"}, {"empty", ""}};
  const torch::Tensor base = torch::arange(-6, 6).reshape({3, 4});
  for (const auto type :
       {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
        torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    content.tensors[c10::toString(type)] = base.to(type);
  }
  content.tensors["scalar"] = torch::tensor(3.5);
  content.tensors["none"] = torch::empty({2, 0, 3});
  content.tensors["transposed \"name\""] = base.t();
  content.tensors["with gradient"] = torch::ones({2}, torch::kFloat64).set_requires_grad(true);
  const TempDir folder;
  write_safetensors(folder.path() / "file", content);
  expect_same(read_safetensors(folder.path() / "file"), content);
}

TEST(Safetensors, WritesKnownBytes) {
  const TempDir folder;
  Safetensors content;
  content.tensors["b"] = torch::tensor({1, 2}, torch::kUInt8);
  content.tensors["a"] = torch::tensor({3, 4}, torch::kInt16);
  write_safetensors(folder.path() / "file", content);
  std::string header = R"({"a":{"data_offsets":[0,4],"dtype":"I16","shape":[2]},)"
                       R"("b":{"data_offsets":[4,6],"dtype":"U8","shape":[2]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(folder.path() / "file"),
            with_header(header, std::string("\x03\x00\x04\x00\x01\x02", 6)));
}

TEST(Safetensors, EmptyContent) {
  EXPECT_TRUE(parse(with_header("{}")).tensors.empty());
  EXPECT_TRUE(parse(with_header("{\"__metadata__\":{}}  ")).metadata.empty());
}

TEST(Safetensors, ReadsGoldenFilesAndWritesThemBack) {
  const TempDir folder;
  for (const char* name : {"schedule_toy_T4.safetensors", "toy_step_T4.safetensors"}) {
    const Safetensors golden = read_safetensors(std::filesystem::path(DDAEBM_GOLDEN) / name);
    EXPECT_EQ(golden.metadata.at("num_timesteps"), "4");
    write_safetensors(folder.path() / name, golden);
    expect_same(read_safetensors(folder.path() / name), golden);
  }
  const Safetensors schedule =
      read_safetensors(std::filesystem::path(DDAEBM_GOLDEN) / "schedule_toy_T4.safetensors");
  EXPECT_EQ(schedule.tensors.size(), 11);
  EXPECT_EQ(schedule.tensors.at("time").sizes(), torch::IntArrayRef({5}));
  EXPECT_EQ(schedule.tensors.at("time").scalar_type(), torch::kFloat64);
}

TEST(Safetensors, BoolsAreZeroOrOne) {
  const auto content =
      parse(with_header(R"({"x":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                        std::string("\x00\x01\xff", 3)));
  EXPECT_TRUE(content.tensors.at("x").equal(torch::tensor({false, true, true})));
}

TEST(Safetensors, RefusesHostileFiles) {
  const std::string good = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string data(8, '\0');
  ASSERT_NO_THROW(parse(with_header(good, data)));
  const std::string huge_header("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
  const std::vector<std::string> files{
      "",
      "1234567",
      huge_header,
      with_header(""),
      with_header("[]"),
      with_header("{"),
      with_header("{\"\xff\":1}"),
      with_header(std::string(100'000, '[')),
      with_header(R"({"x":[[[[]]]]})"),
      with_header(good, data + "x"),
      with_header(good, data.substr(1)),
      with_header(R"({"x":1})"),
      with_header(R"({"x":1e999})"),  // found by libFuzzer
      with_header(R"({"x":{}})"),
      with_header(R"({"x":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", data),
      with_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})",
                  data),
      with_header(R"({"x":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})",
                  data),
      with_header(
          R"({"x":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]}})"),
      with_header(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                  R"("x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  data),
      with_header(R"({"x":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},)"
                  R"("y":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                  data),
      with_header(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})", data),
      with_header(R"({"__metadata__":[]})"),
      with_header(R"({"__metadata__":{"a":1}})"),
      with_header(R"({"__metadata__":{"a":"1","a":"2"}})"),
  };
  for (const std::string& file : files) EXPECT_THROW(parse(file), Error) << file.substr(0, 200);
}

TEST(Safetensors, ErrorsAreOneShortLine) {
  const std::string name(100'000, 'n');
  try {
    parse(with_header("{\"a\\n\\u001b" + name + "\":{}}"));
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos) << message;
    EXPECT_LT(message.size(), 300);
  }
}

// Every single byte changed, and every length: a result or an Error, nothing else.
TEST(Safetensors, SurvivesDamage) {
  const std::string file = with_header(
      R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"BOOL","shape":[1,2],"data_offsets":[8,10]}})",
      std::string(10, '\1'));
  expect_survives_damage(file, {'\0', '"', '9', '[', '}', '\xff'}, parse);
}

TEST(Safetensors, RefusesToWriteWhatTheFormatCannotHold) {
  const TempDir folder;
  const auto path = folder.path() / "file";
  EXPECT_THROW(write_safetensors(path, {{{"__metadata__", torch::ones({1})}}, {}}), Error);
  EXPECT_THROW(write_safetensors(path, {{{"x", torch::ones({1}, torch::kComplexFloat)}}, {}}),
               Error);
  EXPECT_THROW(write_safetensors(path, {{}, {{"x", "\xff"}}}), Error);
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace ddaebm
