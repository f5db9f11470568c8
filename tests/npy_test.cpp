#include "ddaebm/io/npy.h"

#include <fstream>
#include <string_view>

#include "refusals.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

// A file of the given version, its header not padded.
std::string npy(int version, const std::string& header, const std::string& data) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return file + header + data;
}

torch::Tensor parse(const std::string& bytes) {
  const TempDir folder;
  std::ofstream(folder.path() / "file.npy", std::ios::binary) << bytes;
  return read_npy(folder.path() / "file.npy");
}

std::string message_of(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

std::map<std::string, torch::Tensor> parse_archive(const std::string& bytes) {
  const TempDir folder;
  std::ofstream(folder.path() / "file.npz", std::ios::binary) << bytes;
  return read_npz(folder.path() / "file.npz");
}

std::map<std::string, torch::Tensor> every_type() {
  std::map<std::string, torch::Tensor> arrays;
  const torch::Tensor base = torch::arange(-6, 6).reshape({3, 4});
  for (const auto type :
       {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kInt64, torch::kInt32,
        torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    arrays[c10::toString(type)] = base.to(type);
  }
  arrays["scalar"] = torch::tensor(2.5);
  arrays["vector"] = torch::arange(5);
  arrays["none"] = torch::empty({0, 2});
  arrays["transposed"] = base.t();
  return arrays;
}

TEST(Npy, RoundTripOfEveryType) {
  const TempDir folder;
  const auto path = folder.path() / "file.npy";
  for (const auto& [name, array] : every_type()) {
    write_npy(path, array);
    const torch::Tensor found = read_npy(path);
    EXPECT_EQ(found.scalar_type(), array.scalar_type()) << name;
    EXPECT_TRUE(found.equal(array)) << name;
  }
}

// What numpy.save writes for array([1, 2, 3], dtype='int16').
TEST(Npy, WritesNumPysBytes) {
  const TempDir folder;
  write_npy(folder.path() / "file.npy", torch::tensor({1, 2, 3}, torch::kInt16));
  std::string header = "{'descr': '<i2', 'fortran_order': False, 'shape': (3,), }";
  header.resize(128 - 10 - 1, ' ');
  header += '\n';
  EXPECT_EQ(read_file(folder.path() / "file.npy"),
            npy(1, header, std::string("\x01\0\x02\0\x03\0", 6)));
}

TEST(Npy, ReadsVersionsOrdersAndKeysInAnyOrder) {
  const std::string data("\1\2\3\4\5\6", 6);
  const torch::Tensor rows = torch::tensor({{1, 2, 3}, {4, 5, 6}}, torch::kUInt8);
  const torch::Tensor columns = torch::tensor({{1, 3, 5}, {2, 4, 6}}, torch::kUInt8);
  const std::string c_order = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }\n";
  for (const int version : {1, 2, 3}) EXPECT_TRUE(parse(npy(version, c_order, data)).equal(rows));
  EXPECT_TRUE(
      parse(npy(1, "{\"shape\":(2,3,),'fortran_order':True,'descr':'|u1'}", data)).equal(columns));
  EXPECT_TRUE(parse(npy(1, "{'shape': (), 'fortran_order': True, 'descr': '|b1'}", "\xff"))
                  .equal(torch::tensor(true)));
}

TEST(Npy, RefusesHostileFiles) {
  const auto shaped = [](const std::string& shape) {
    return npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': " + shape + "}",
               std::string(8, '\0'));
  };
  ASSERT_NO_THROW(parse(shaped("(1,)")));
  const std::string rank_33 = [] {
    std::string sizes;
    for (int i = 0; i < 33; ++i) sizes += "1,";
    return "(" + sizes + ")";
  }();
  for (const std::string& shape :
       {std::string("(1000000000000000000,)"), std::string("(2,)"), std::string("(-1,)"),
        std::string("(-1, -1)"), std::string("(4294967296, 4294967296, 8)"),
        std::string("(99999999999999999999,)"), std::string("(9223372036854775807, 4, 0)"),
        std::string("(1)"), std::string("1"), std::string("(1,,)"), std::string("(,)"),
        std::string("(1"), std::string("(1.0,)"), std::string("[1]"), rank_33}) {
    EXPECT_THROW(parse(shaped(shape)), Error) << shape;
  }
  for (const char* header :
       {"", "{", "{}", "{'descr': '<f8'}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x",
        "{'descr': '<f8', 'fortran_order': Falsy, 'shape': (1,)}",
        "{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        "{'descr': '<f8, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"}) {
    EXPECT_THROW(parse(npy(1, header, std::string(8, '\0'))), Error) << header;
  }
  EXPECT_THROW(parse(""), Error);
  EXPECT_THROW(parse(npy(4, "", "")), Error);
  EXPECT_THROW(parse("\x93NUMPY\x01"), Error);
  EXPECT_THROW(parse(std::string("\x93NUMPY\x02\0\xff\xff\xff\xff{", 13)), Error);
}

TEST(Npy, ErrorsSayWhatToDo) {
  const auto typed = [](const std::string& descr) {
    return message_of(npy(1, "{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,)}",
                          std::string(8, '\0')));
  };
  EXPECT_NE(typed("'>f8'").find("newbyteorder"), std::string::npos);
  EXPECT_NE(typed("[('a', '<f8')]").find("each field"), std::string::npos);
  EXPECT_NE(typed("'<U2'").find("astype"), std::string::npos);
  EXPECT_EQ(typed("'a\nb'").find('\n'), std::string::npos);
  const TempDir folder;
  EXPECT_THROW(write_npy(folder.path() / "file.npy", torch::ones({2}, torch::kBFloat16)), Error);
}

TEST(Npy, SurvivesDamage) {
  const std::string file =
      npy(1, "{'descr': '<i2', 'fortran_order': True, 'shape': (2, 1), }\n", "abcd");
  expect_survives_damage(file, {'\0', '\'', '9', '(', '}', '\xff'}, parse);
}

TEST(Npz, RoundTripIsExactAndRepeatable) {
  const TempDir folder;
  const auto arrays = every_type();
  write_npz(folder.path() / "a.npz", arrays);
  write_npz(folder.path() / "b.npz", arrays);
  EXPECT_EQ(read_file(folder.path() / "a.npz"), read_file(folder.path() / "b.npz"));
  const auto found = read_npz(folder.path() / "a.npz");
  ASSERT_EQ(found.size(), arrays.size());
  for (const auto& [name, array] : arrays) {
    ASSERT_TRUE(found.contains(name)) << name;
    EXPECT_TRUE(found.at(name).equal(array)) << name;
  }
}

// As zlib and Python's zipfile pack it: x.npy = uint8 [300] of zeros, deflated.
std::string deflated_archive() {
  constexpr std::string_view kBytes{
      "\120\113\003\004\024\000\000\000\010\000\000\000\041\000\322\024\101\016\113\000"
      "\000\000\254\001\000\000\005\000\000\000\170\056\156\160\171\233\354\027\352\033"
      "\020\311\310\120\306\120\255\236\222\132\234\134\244\156\245\240\136\123\152\250"
      "\256\243\240\236\226\137\124\122\224\230\027\237\137\224\222\012\022\167\113\314"
      "\051\116\005\212\027\147\044\026\244\002\371\032\306\006\006\072\232\072\012\265"
      "\012\144\003\056\206\121\100\064\000\000\120\113\001\002\024\003\024\000\000\000"
      "\010\000\000\000\041\000\322\024\101\016\113\000\000\000\254\001\000\000\005\000"
      "\000\000\000\000\000\000\000\000\000\000\200\001\000\000\000\000\170\056\156\160"
      "\171\120\113\005\006\000\000\000\000\001\000\001\000\063\000\000\000\156\000\000"
      "\000\000\000",
      183};
  return std::string(kBytes);
}

TEST(Npz, ReadsDeflatedArrays) {
  const auto arrays = parse_archive(deflated_archive());
  ASSERT_EQ(arrays.size(), 1);
  EXPECT_TRUE(arrays.at("x").equal(torch::zeros({300}, torch::kUInt8)));
}

// Writes `size` as the unpacked size of the archive's one entry, in both of its records.
std::string claiming(std::string archive, uint32_t size) {
  for (const auto& [record, offset] : {std::pair("PK\1\2", 24), std::pair("PK\3\4", 22)}) {
    const size_t at = archive.find(record) + offset;
    for (int i = 0; i < 4; ++i) archive[at + i] = static_cast<char>(size >> (8 * i) & 0xff);
  }
  return archive;
}

TEST(Npz, RefusesSizesThatThePackedBytesCannotGive) {
  const std::string archive = deflated_archive();
  EXPECT_THROW(parse_archive(claiming(archive, 0xfffffff0)), Error);
  EXPECT_THROW(parse_archive(claiming(archive, 429)), Error);
  EXPECT_THROW(parse_archive(claiming(archive, 427)), Error);
  ASSERT_NO_THROW(parse_archive(claiming(archive, 428)));
}

TEST(Npz, RefusesWhatIsNoArchiveOfArrays) {
  EXPECT_THROW(parse_archive(""), Error);
  EXPECT_THROW(parse_archive("no archive"), Error);
  EXPECT_THROW(read_npz("/nowhere/file.npz"), Error);
  const TempDir folder;
  EXPECT_THROW(write_npz(folder.path() / "file.npz", {}), Error);
  EXPECT_THROW(write_npz(folder.path() / "file.npz", {{"x", torch::ones({1}, torch::kBFloat16)}}),
               Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "file.npz"));
}

TEST(Npz, RefusesRepeatedNames) {
  const TempDir folder;
  const auto path = folder.path() / "file.npz";
  write_npz(path, {{"x", torch::ones({1})}, {"y", torch::ones({1})}});
  std::string archive = read_file(path);
  for (size_t at = archive.find("y.npy"); at != std::string::npos; at = archive.find("y.npy")) {
    archive[at] = 'x';
  }
  EXPECT_THROW(parse_archive(archive), Error);
}

TEST(Npz, SurvivesDamage) {
  const std::string archive = deflated_archive();
  for (size_t i = 0; i < archive.size(); ++i) {
    EXPECT_THROW(parse_archive(archive.substr(0, i)), Error);
    for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
      std::string damaged = archive;
      damaged[i] = byte;
      const auto try_to_parse = [&] {
        try {
          parse_archive(damaged);
        } catch (const Error&) {
        }
      };
      EXPECT_NO_THROW(try_to_parse()) << i;
    }
  }
}

}  // namespace
}  // namespace ddaebm
