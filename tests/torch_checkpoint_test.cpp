#include "ddaebm/io/torch_checkpoint.h"

#include <fstream>

#include "refusals.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/io/authors_checkpoint.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

using namespace std::string_literals;

// Made by tests/make_pickle_fixtures.py.
std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(DDAEBM_GOLDEN).parent_path() / "golden_pickle" / name;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

Pickle parse(const std::string& bytes) {
  const TempDir folder;
  std::ofstream(folder.path() / "file.pth", std::ios::binary) << bytes;
  return read_torch_checkpoint(folder.path() / "file.pth");
}

std::string message_of(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

uint32_t crc32(const std::string& data) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : data) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc;
}

struct Member {
  std::string name;
  std::string data;
  uint64_t claimed;  // its size, as the archive tells it
  Member(std::string n, std::string d) : name(std::move(n)), data(std::move(d)) {
    claimed = data.size();
  }
};

// A stored zip archive whose sizes stand in 64 bits, so that they can be any.
std::string zip_of(const std::vector<Member>& members) {
  std::string file;
  std::string directory;
  for (const Member& member : members) {
    const std::string about = "\x2d\0\0\0\0\0\0\0\x21\0"s + little_endian(crc32(member.data)) +
                              "\xff\xff\xff\xff\xff\xff\xff\xff"s +
                              little_endian(static_cast<uint16_t>(member.name.size())) + "\x14\0"s;
    const std::string extra =
        "\1\0\x10\0"s + little_endian(member.claimed) + little_endian(member.claimed);
    const auto offset = static_cast<uint32_t>(file.size());
    file += "PK\3\4"s + about + member.name + extra + member.data;
    directory += "PK\1\2\x2d\0"s + about + std::string(10, '\0') + little_endian(offset) +
                 member.name + extra;
  }
  const auto count = little_endian(static_cast<uint16_t>(members.size()));
  return file + directory + "PK\5\6\0\0\0\0"s + count + count +
         little_endian(static_cast<uint32_t>(directory.size())) +
         little_endian(static_cast<uint32_t>(file.size())) + "\0\0"s;
}

std::string storage_id(const std::string& type, const std::string& key, const std::string& size) {
  return "(S'storage'\nctorch\n" + type + "\nS'" + key + "'\nS'cpu'\nI" + size + "\ntQ";
}

std::string tensor_of(const std::string& storage, const std::string& offset,
                      const std::string& sizes, const std::string& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "I" + offset + "\n(" + sizes + "t(" +
         strides + "tI00\n}tR";
}

// A checkpoint of one value over the storage "0" of four floats: 0, 1, 2, 3.
std::string archive_of(const std::string& value) {
  std::string floats;
  for (const float x : {0.0F, 1.0F, 2.0F, 3.0F}) floats += little_endian(x);
  return zip_of({{"a/data.pkl", value + "."}, {"a/data/0", floats}, {"a/version", "3\n"}});
}

const std::string kFour = storage_id("FloatStorage", "0", "4");

TEST(TorchCheckpoint, ReadsEveryTypeAndLayout) {
  const torch::Tensor base = torch::arange(6).reshape({2, 3});
  for (const char* name : {"types.pth", "types_legacy.pth", "types_torch2.pth"}) {
    const Pickle pickle = read_torch_checkpoint(fixture(name));
    const auto tensor = [&](const char* key) { return *pickle.value.find(key)->tensor(); };
    const std::pair<const char*, torch::ScalarType> types[] = {
        {"float64", torch::kFloat64},   {"float32", torch::kFloat32}, {"float16", torch::kFloat16},
        {"bfloat16", torch::kBFloat16}, {"int64", torch::kInt64},     {"int32", torch::kInt32},
        {"int16", torch::kInt16},       {"int8", torch::kInt8},       {"uint8", torch::kUInt8},
        {"bool", torch::kBool}};
    for (const auto& [key, type] : types) {
      EXPECT_EQ(tensor(key).scalar_type(), type) << name << " " << key;
      EXPECT_TRUE(tensor(key).equal(base.to(type))) << name << " " << key;
    }
    EXPECT_TRUE(tensor("scalar").equal(torch::tensor(2.5F)));
    EXPECT_TRUE(tensor("empty").equal(torch::empty({0, 3})));
    EXPECT_TRUE(tensor("transposed").equal(base.to(torch::kFloat32).t()));
    EXPECT_TRUE(tensor("shared_a").equal(torch::arange(2.0F, 8.0F).reshape({2, 3})));
    EXPECT_TRUE(tensor("shared_b").equal(torch::tensor({5.0F, 10.0F, 15.0F})));
    EXPECT_TRUE(tensor("shared_a").is_alias_of(tensor("shared_b"))) << name;
    EXPECT_TRUE(tensor("parameter").equal(torch::ones({2})));
    EXPECT_TRUE(pickle.inert_globals.empty()) << name;
  }
}

TEST(TorchCheckpoint, ReadsTheOtherByteOrder) {
  const PickleValue root = read_torch_checkpoint(fixture("big_endian.pth")).value;
  EXPECT_TRUE(root.find("f")->tensor()->equal(torch::tensor({1.5F, -2.0F})));
  EXPECT_TRUE(root.find("i")->tensor()->equal(torch::tensor({258, -3}, torch::kInt16)));
}

TEST(TorchCheckpoint, KeepsCodeOut) {
  try {
    read_torch_checkpoint(fixture("script.pt"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(has(error.what(), "TorchScript")) << error.what();
  }
  const Pickle whole = read_torch_checkpoint(fixture("whole_network.pth"));
  EXPECT_EQ(whole.value.object()->name, "torch.nn.modules.linear.Linear");
  EXPECT_EQ(whole.inert_globals, std::vector<std::string>{"torch.nn.modules.linear.Linear"});
  const TempDir folder;
  const std::string victim = (folder.path() / "victim").string();
  EXPECT_EQ(parse(archive_of("cos\nsystem\n(S'touch " + victim + "'\ntR")).inert_globals,
            std::vector<std::string>{"os.system"});
  EXPECT_FALSE(std::filesystem::exists(victim));
}

TEST(TorchCheckpoint, ViewsStayInsideTheirStorage) {
  const auto view = [](const std::string& offset, const std::string& sizes,
                       const std::string& strides) {
    return archive_of(tensor_of(kFour, offset, sizes, strides));
  };
  EXPECT_TRUE(parse(view("0", "I2\nI2\n", "I1\nI2\n"))
                  .value.tensor()
                  ->equal(torch::tensor({{0.0F, 2.0F}, {1.0F, 3.0F}})));
  EXPECT_TRUE(parse(view("3", "", "")).value.tensor()->equal(torch::tensor(3.0F)));
  EXPECT_TRUE(parse(view("4", "I0\n", "I1\n")).value.tensor()->equal(torch::empty({0})));
  // The stride of a size of one is never used.
  EXPECT_TRUE(parse(view("1", "I1\n", "I9223372036854775807\n"))
                  .value.tensor()
                  ->equal(torch::tensor({1.0F})));
  const struct {
    const char *offset, *sizes, *strides;
  } hostile[] = {
      {"0", "I5\n", "I1\n"},
      {"1", "I4\n", "I1\n"},
      {"4", "", ""},
      {"-1", "I1\n", "I1\n"},
      {"5", "I0\n", "I1\n"},
      {"0", "I2\n", "I4\n"},
      {"3", "I2\n", "I-1\n"},
      {"0", "I-1\n", "I1\n"},
      {"0", "I-1\nI-4\n", "I1\nI1\n"},
      {"0", "I4294967296\nI4294967296\n", "I0\nI0\n"},
      {"0", "I9223372036854775807\n", "I9223372036854775807\n"},
      {"9223372036854775807", "I2\n", "I9223372036854775807\n"},
      {"0", "I1000000000000\n", "I0\n"},  // terabytes, of one float
      {"0", "I2\nI2\n", "I1\n"},
      {"0", "N", "I1\n"},
      {"0", "I9223372036854775807\nI4\nI0\n", "I1\nI1\nI1\n"},
  };
  for (const auto& [offset, sizes, strides] : hostile) {
    EXPECT_THROW(parse(view(offset, sizes, strides)), Error) << offset << sizes << strides;
  }
  EXPECT_TRUE(has(message_of(view("1", "I4\n", "I1\n")), "beyond its storage of 4"));
  std::string ones;
  for (int i = 0; i < 33; ++i) ones += "I1\n";
  EXPECT_THROW(parse(view("0", ones, ones)), Error);
}

TEST(TorchCheckpoint, OnlyAStorageIsAStorage) {
  const std::string tensor = tensor_of(kFour, "2", "I2\n", "I1\n");
  ASSERT_NO_THROW(parse(archive_of(tensor)));
  EXPECT_THROW(parse(archive_of(tensor_of(tensor, "0", "I4\n", "I1\n"))), Error);
  EXPECT_THROW(parse(archive_of(tensor_of("N", "0", "I4\n", "I1\n"))), Error);
  for (const std::string& id :
       {storage_id("FloatStorage", "0", "5"), storage_id("FloatStorage", "0", "-4"),
        storage_id("FloatStorage", "0", "4611686018427387904"),
        storage_id("FloatStorage", "1", "4"), storage_id("FloatStorage", "../data.pkl", "4"),
        storage_id("DoubleStorage", "0", "4"), storage_id("QInt8Storage", "0", "16"),
        kFour + storage_id("IntStorage", "0", "4"), "(S'module'\nNNNNtQ"s, "NQ"s, ")Q"s,
        "(S'storage'\nNNNNtQ"s}) {
    EXPECT_THROW(parse(archive_of(id)), Error) << id;
  }
}

TEST(TorchCheckpoint, BelievesNoSizes) {
  constexpr uint64_t kHundredGigabytes = 100'000'000'000;
  Member storage("a/data/0", std::string(16, '\0'));
  storage.claimed = kHundredGigabytes;
  const std::string id = storage_id("FloatStorage", "0", std::to_string(kHundredGigabytes / 4));
  EXPECT_THROW(parse(zip_of({{"a/data.pkl", id + "."}, storage})), Error);
  Member pickle("a/data.pkl", "N.");
  ASSERT_NO_THROW(parse(zip_of({pickle})));
  pickle.claimed = kHundredGigabytes;
  EXPECT_THROW(parse(zip_of({pickle})), Error);
}

TEST(TorchCheckpoint, RefusesOtherFiles) {
  EXPECT_TRUE(has(message_of("hello"), "torch.save"));
  EXPECT_TRUE(has(message_of(""), "torch.save"));
  EXPECT_TRUE(has(message_of("\x80\x02N."), "magic number"));
  EXPECT_TRUE(has(message_of(zip_of({{"x.npy", "data"}})), "data.pkl"));
  EXPECT_TRUE(has(message_of(zip_of({{"a/data.pkl", "N."}, {"a/data.pkl", "N."}})), "twice"));
  EXPECT_TRUE(
      has(message_of(zip_of({{"a/data.pkl", "N."}, {"a/byteorder", "odd"}})), "byte order"));
  EXPECT_THROW(read_torch_checkpoint("/nowhere/file.pth"), Error);
}

TEST(TorchCheckpoint, SurvivesDamage) {
  for (const char* name : {"types_legacy.pth", "types.pth"}) {
    const std::string bytes = read_file(fixture(name));
    const TempDir folder;
    const auto path = folder.path() / "file.pth";
    const auto survives = [&](const std::string& damaged) {
      std::ofstream(path, std::ios::binary) << damaged;
      try {
        read_torch_checkpoint(path);
      } catch (const Error&) {
      }
    };
    for (size_t i = 0; i < bytes.size(); i += 13) {  // a file each: slow on some disks
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (i % 3 == 0 ? 0xff : i % 3 == 1 ? 0x01 : 0x80));
      EXPECT_NO_THROW(survives(damaged)) << name << " " << i;
      if (i % 5 == 0) {
        EXPECT_THROW(parse(bytes.substr(0, i)), Error) << name << " " << i;
      }
    }
  }
}

// Storages are allocated before their data come: no more than the file has.
TEST(TorchCheckpoint, LegacySizesAreChecked) {
  const std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  const auto file = [&](const std::string& size, const std::string& keys, int64_t told,
                        const std::string& data) {
    return magic + "I1001\n.(d." + storage_id("FloatStorage", "k", size) + "." + "(l" + keys + "." +
           little_endian(told) + data;
  };
  const std::string key = "S'k'\na";
  EXPECT_TRUE(
      parse(file("1", key, 1, little_endian(2.5F))).value.tensor()->equal(torch::tensor({2.5F})));
  EXPECT_THROW(parse(file("1000000000000", key, 1000000000000, "")), Error);
  EXPECT_THROW(parse(file("1", key, 2, std::string(8, '\0'))), Error);
  EXPECT_THROW(parse(file("1", key, 1, "abc")), Error);
  EXPECT_THROW(parse(file("1", "", 1, "abcd")), Error);
  EXPECT_THROW(parse(file("1", key + key, 1, "abcd")), Error);
  EXPECT_THROW(parse(file("1", "S'other'\na", 1, "abcd")), Error);
  EXPECT_THROW(parse(file("1", "Na", 1, "abcd")), Error);
  EXPECT_THROW(parse(magic + "I1002\n."), Error);
}

// --- the authors' and DDGAN's layouts

AuthorsCheckpoint networks_in(const std::string& name) {
  return find_authors_networks(name, read_torch_checkpoint(fixture(name)).value);
}

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& entry : tensors) names.push_back(entry.first);
  return names;
}

// The fixtures' tensor k counts up from 100 k; its average is minus that, minus 1.
void expect_numbered(const NamedTensors& tensors, bool averaged) {
  for (size_t k = 0; k < tensors.size(); ++k) {
    const auto& [name, tensor] = tensors[k];
    torch::Tensor wanted = torch::arange(tensor.numel(), tensor.scalar_type()) + 100.0 * k;
    if (averaged && name != "all_modules.0.W") wanted = -wanted - 1;
    EXPECT_TRUE(tensor.flatten().equal(wanted.to(tensor.scalar_type()))) << name;
  }
}

TEST(AuthorsCheckpoint, TakesTheAveragesOfAContent) {
  const AuthorsCheckpoint found = networks_in("authors_content.pth");
  ASSERT_EQ(found.networks.size(), 3);
  EXPECT_EQ(
      names_of(found.networks.at("generator")),
      (std::vector<std::string>{"all_modules.0.W", "all_modules.1.weight", "all_modules.1.bias",
                                "z_transform.1.weight", "z_transform.1.bias"}));
  EXPECT_EQ(names_of(found.networks.at("energy")),
            (std::vector<std::string>{"all_modules.0.weight", "all_modules.0.bias",
                                      "all_modules.1.weight"}));
  EXPECT_EQ(names_of(found.networks.at("encoder")),
            (std::vector<std::string>{"conv1.weight", "conv51.weight", "conv52.weight"}));
  EXPECT_EQ(found.networks.at("encoder")[0].second.sizes(), (std::vector<int64_t>{2, 2, 3, 3}));
  for (const auto& [name, tensors] : found.networks) {
    if (name == "energy") {
      // Its first tensor is trained here, unlike the generator's.
      EXPECT_TRUE(tensors[0].second.flatten().equal(-torch::arange(4.0F) - 1));
    }
    expect_numbered(tensors, true);
  }
  EXPECT_EQ(found.epoch, 51);
  EXPECT_EQ(found.global_step, 1234);
  ASSERT_EQ(found.notes.size(), 2);
  EXPECT_TRUE(has(found.notes[0], "optimizerG")) << found.notes[0];
  EXPECT_TRUE(has(found.notes[0], "7 of 8")) << found.notes[0];
  EXPECT_TRUE(has(found.notes[1], "optimizerD")) << found.notes[1];

  EXPECT_EQ(found.settings.at("num_channels_dae").integer(), 128);
  EXPECT_EQ(found.settings.at("ch_mult").list()->size(), 4);
  EXPECT_EQ(found.settings.at("ch_mult").list()->at(1).integer(), 2);
  EXPECT_EQ(found.settings.at("attn_resolutions").list()->at(0).integer(), 16);
  EXPECT_EQ(found.settings.at("dropout").number(), 0.1);
  EXPECT_EQ(found.settings.at("dataset").text(), "cifar10");
  EXPECT_TRUE(found.settings.at("lazy_reg").is_none());
  EXPECT_EQ(found.settings.at("use_ema").boolean(), true);
}

TEST(AuthorsCheckpoint, KnowsDdgansDiscriminator) {
  const AuthorsCheckpoint found = networks_in("ddgan_content.pth");
  ASSERT_EQ(found.networks.size(), 2);
  expect_numbered(found.networks.at("generator"), true);
  expect_numbered(found.networks.at("discriminator"), false);
  ASSERT_EQ(found.notes.size(), 1);
  EXPECT_TRUE(has(found.notes[0], "4 of 5")) << found.notes[0];
}

TEST(AuthorsCheckpoint, ToyNetworksHaveNoAverages) {
  const AuthorsCheckpoint found = networks_in("toy_content.pth");
  ASSERT_EQ(found.networks.size(), 3);
  for (const auto& [name, tensors] : found.networks) expect_numbered(tensors, false);
  EXPECT_EQ(found.networks.at("generator").size(), 9);  // with batch norm's counters
  EXPECT_TRUE(found.notes.empty());
  EXPECT_EQ(found.settings.at("nz").integer(), 2);
}

TEST(AuthorsCheckpoint, TellsBareStateDictsByTheirNames) {
  for (const auto& [file, network] :
       {std::pair("netG_5.pth", "generator"), std::pair("netD_5.pth", "energy"),
        std::pair("netE_5.pth", "encoder")}) {
    const AuthorsCheckpoint found = networks_in(file);
    ASSERT_EQ(found.networks.size(), 1) << file;
    ASSERT_TRUE(found.networks.contains(network)) << file;
    expect_numbered(found.networks.at(network), false);
    EXPECT_TRUE(found.settings.empty());
    EXPECT_FALSE(found.epoch);
  }
}

// The optimiser trains the generator alone, but the file has an encoder.
TEST(AuthorsCheckpoint, SaysWhereAveragesDoNotFit) {
  const AuthorsCheckpoint found = networks_in("misfit_content.pth");
  for (const auto& [name, tensors] : found.networks) expect_numbered(tensors, false);
  ASSERT_EQ(found.notes.size(), 1);
  EXPECT_TRUE(has(found.notes[0], "do not fit")) << found.notes[0];
}

TEST(AuthorsCheckpoint, RefusesWhatIsNoneOfThem) {
  const auto message = [](const PickleValue& content) -> std::string {
    try {
      find_authors_networks("file", content);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const auto of_file = [&](const char* name) {
    return message(read_torch_checkpoint(fixture(name)).value);
  };
  EXPECT_TRUE(has(of_file("whole_network.pth"), "instance of torch.nn.modules.linear.Linear"));
  EXPECT_TRUE(has(of_file("types.pth"), "\"float64\""));
  const auto of_pickle = [&](const std::string& bytes) {
    return message(parse(archive_of(bytes)).value);
  };
  const std::string tensor = tensor_of(kFour, "0", "I4\n", "I1\n");
  EXPECT_TRUE(has(of_pickle("N"), "expected a dict"));
  EXPECT_TRUE(has(of_pickle("(d"), "expected netG_dict"));
  EXPECT_TRUE(has(of_pickle("(dS'model'\n(ds"), "\"model\""));
  EXPECT_TRUE(has(of_pickle("(dS'netG_dict'\n(ds"), "not a dict of tensors"));
  EXPECT_TRUE(has(of_pickle("(dS'netG_dict'\n(dS'conv51.weight'\n" + tensor + "ss"), "conv51"));
  EXPECT_EQ(of_pickle("(dS'netE_dict'\n(dS'conv51.weight'\n" + tensor + "ss"), "no error");
}

}  // namespace
}  // namespace ddaebm
