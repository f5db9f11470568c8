#include "ddaebm/io/pickle.h"

#include <fstream>
#include <limits>

#include "refusals.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/data/cifar_python.h"
#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

using Kind = PickleValue::Kind;
using namespace std::string_literals;

// Made by tests/make_pickle_fixtures.py.
std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(DDAEBM_GOLDEN).parent_path() / "golden_pickle" / name;
}

Pickle parse(const std::string& bytes) {
  std::string_view view = bytes;
  return take_pickle("file", view);
}

std::string message_of(const std::string& bytes) {
  return error_of([&] { parse(bytes); });
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string repeated(std::string_view text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

std::vector<int64_t> integers(const PickleValue& value) {
  std::vector<int64_t> numbers;
  for (const PickleValue& item : *value.list()) numbers.push_back(item.integer().value());
  return numbers;
}

class PickleOfProtocol : public testing::TestWithParam<int> {};

TEST_P(PickleOfProtocol, HoldsWhatPythonPutIn) {
  const Pickle pickle = read_pickle(fixture(fmt::format("values_protocol{}.pkl", GetParam())));
  const PickleValue& root = pickle.value;
  EXPECT_TRUE(root.find("none")->is_none());
  EXPECT_EQ(root.find("true")->boolean(), true);
  EXPECT_EQ(root.find("false")->boolean(), false);
  EXPECT_EQ(integers(*root.find("ints")),
            (std::vector<int64_t>{0, 255, 65535, -1, int64_t{1} << 31, -(int64_t{1} << 40),
                                  std::numeric_limits<int64_t>::max()}));
  const auto& floats = *root.find("floats")->list();
  EXPECT_EQ(floats[0].number(), 0.5);
  EXPECT_EQ(floats[1].number(), -1e300);
  EXPECT_EQ(floats[2].number(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(root.find("text")->kind(), Kind::kString);
  EXPECT_EQ(root.find("text")->text(), "h\xc3\xa9llo \xf0\x9f\x98\x80\n\\u");
  EXPECT_EQ(root.find("bytes")->kind(), Kind::kBytes);
  EXPECT_EQ(root.find("bytes")->text(), "\0\xff'\\\n"s);
  EXPECT_EQ(root.find("empty_bytes")->text(), "");
  EXPECT_EQ(root.find("long")->text(), std::string(300, 'x'));
  const auto& tuples = *root.find("tuples")->list();
  ASSERT_EQ(tuples.size(), 5);
  for (size_t i = 0; i < tuples.size(); ++i) {
    EXPECT_EQ(tuples[i].kind(), Kind::kTuple);
    EXPECT_EQ(tuples[i].list()->size(), i);
  }
  EXPECT_EQ(root.find("ordered")->dict()->front().first.text(), "b");
  EXPECT_EQ(root.find("ordered")->find("a")->integer(), 2);
  EXPECT_EQ(root.find("nothing"), nullptr);

  // Keys need not be text, and keep their order.
  const auto& entries = *root.dict();
  const auto five = std::find_if(entries.begin(), entries.end(),
                                 [](const auto& entry) { return entry.first.integer() == 5; });
  ASSERT_NE(five, entries.end());
  EXPECT_EQ(five->second.text(), "five");
  EXPECT_EQ(integers((five + 1)->first), (std::vector<int64_t>{1, 2}));

  const auto& shared = *root.find("shared")->list();
  EXPECT_EQ(shared[0].list(), shared[1].list());

  const auto* point = root.find("object")->object();
  ASSERT_NE(point, nullptr);
  EXPECT_EQ(point->name, "shapes.Point");
  EXPECT_EQ(point->state.find("x")->integer(), 1);
  const auto* names = root.find("namespace")->object();
  ASSERT_NE(names, nullptr);
  EXPECT_EQ(names->name, "argparse.Namespace");
  EXPECT_EQ(names->state.find("nz")->integer(), 100);
  EXPECT_EQ(root.find("set")->object()->name, "builtins.set");
  EXPECT_EQ(pickle.inert_globals, std::vector<std::string>{"shapes.Point"});

  EXPECT_TRUE(
      root.find("array")->tensor()->equal(torch::tensor({{0, 1, 2}, {3, 4, 5}}, torch::kInt16)));
  EXPECT_TRUE(root.find("fortran")->tensor()->equal(
      torch::tensor({{0, 1, 2}, {3, 4, 5}}, torch::kFloat64)));
  EXPECT_EQ(root.find("number")->number(), 0.25);
  EXPECT_EQ(root.find("words")->kind(), Kind::kObject);
}

INSTANTIATE_TEST_SUITE_P(All, PickleOfProtocol, testing::Range(0, 6));

TEST(Pickle, ReadsPythons2Strings) {
  for (const int protocol : {0, 1, 2}) {
    const PickleValue root =
        read_pickle(fixture(fmt::format("python2_protocol{}.pkl", protocol))).value;
    EXPECT_EQ(root.find("text")->kind(), Kind::kBytes);
    EXPECT_EQ(root.find("text")->text(), "caf\xe9 '\"\n\\");
    EXPECT_EQ(root.find("unicode")->text(), "caf\xc3\xa9 \xf0\x9f\x98\x80 \\");
    EXPECT_EQ(root.find("list")->list()->at(1).number(), 2.5);
    EXPECT_EQ(root.find("list")->list()->at(4).integer(), int64_t{1} << 40);
  }
  EXPECT_EQ(
      parse("ccollections\nOrderedDict\n((lp0\n(lp1\nS'a'\naI1\naatR.").value.find("a")->integer(),
      1);
}

TEST(Pickle, ExecutesNothing) {
  const TempDir folder;
  const std::string victim = (folder.path() / "victim").string();
  const std::string argument = "S'touch " + victim + "'\n";
  for (const std::string& bytes : {
           "cos\nsystem\n(" + argument + "tR.",  // REDUCE
           "(" + argument + "ios\nsystem\n.",    // INST
           "(cos\nsystem\n" + argument + "o.",   // OBJ
           "\x80\x02"
           "cos\nsystem\n(" +
               argument + "t\x81.",                                         // NEWOBJ
           "\x80\x04\x8c\x02os\x8c\x06system\x93(" + argument + "t}\x92.",  // NEWOBJ_EX
       }) {
    const Pickle pickle = parse(bytes);
    ASSERT_NE(pickle.value.object(), nullptr);
    EXPECT_EQ(pickle.value.object()->name, "os.system");
    EXPECT_EQ(pickle.value.object()->args.front().text(), "touch " + victim);
    EXPECT_EQ(pickle.inert_globals, std::vector<std::string>{"os.system"});
  }
  // Hidden where the result does not show it.
  for (const std::string& bytes :
       {"cos\nsystem\n(" + argument + "tR0N.",
        "ccollections\nOrderedDict\n(tR(dS'a'\ncos\nsystem\n(" + argument + "tRsb.",
        "cbuiltins\nset\n(cos\nsystem\n(" + argument + "tRtb0N."}) {
    EXPECT_EQ(parse(bytes).inert_globals, std::vector<std::string>{"os.system"}) << bytes;
  }
  EXPECT_FALSE(std::filesystem::exists(victim));
}

TEST(Pickle, NamesAreThoseOfPython3AndPlain) {
  EXPECT_EQ(parse("c__builtin__\neval\n.").value.object()->name, "builtins.eval");
  EXPECT_THROW(parse("cos\x1b[31m\nsystem\n."), Error);
  EXPECT_THROW(parse("c\nsystem\n."), Error);
  EXPECT_THROW(parse("c" + std::string(1000, 'a') + "\nb\n."), Error);
  EXPECT_THROW(parse("\x8c\x02os\x8c\x02\n\n\x93."), Error);
}

TEST(Pickle, SharedPartsStaySmall) {
  // [[...], [...]], each twice the one before: 2^64 leaves for whoever unfolds it.
  std::string bytes = "]q\1";
  for (int i = 0; i < 64; ++i) bytes += "0](h\1h\1eq\1";
  const PickleValue root = parse(bytes + ".").value;
  const auto& pair = *root.list();
  ASSERT_EQ(pair.size(), 2);
  EXPECT_EQ(pair[0].list(), pair[1].list());
}

TEST(Pickle, RefusesWhatIsTooDeepOrEndless) {
  EXPECT_NO_THROW(parse(repeated("]", 199) + repeated("a", 198) + "."));
  for (const size_t depth : {size_t{201}, size_t{500'000}}) {
    EXPECT_TRUE(has(message_of(repeated("]", depth) + repeated("a", depth - 1) + "."), "deeper"));
    EXPECT_TRUE(has(message_of(")" + repeated("\x85", depth) + "."), "deeper"));
    EXPECT_TRUE(
        has(message_of(repeated("}N", depth) + "N" + repeated("s", depth) + "."), "deeper"));
    EXPECT_TRUE(has(message_of("cA\nB\n" + repeated("cA\nB\n", depth) + repeated("b", depth) + "."),
                    "deeper"));
    // Dropped, so not part of the result.
    EXPECT_NO_THROW(parse(")" + repeated("\x85", depth) + "0N."));
    EXPECT_THROW(parse(")" + repeated("\x85", depth)), Error);
  }
  // A list, deep inside already, that grows deep itself.
  EXPECT_TRUE(has(message_of("]q\1" + repeated("\x85", 100) + "h\1" + repeated("]", 149) +
                             repeated("a", 149) + "0."),
                  "deeper"));
  EXPECT_TRUE(has(message_of("]q\0h\0a."s), "contains itself"));
  EXPECT_TRUE(has(message_of("]q\0(h\0t\x85"
                             "a."s),
                  "contains itself"));
  EXPECT_TRUE(has(message_of("}q\0Nh\0s."s), "contains itself"));
}

TEST(Pickle, BoundsItsMemory) {
  EXPECT_TRUE(has(message_of(repeated("N", 3'000'000)), "values"));
  EXPECT_TRUE(has(message_of(repeated("(", 3'000'000)), "values"));
  EXPECT_TRUE(has(message_of("N" + repeated("\x94", 3'000'000)), "values"));
  EXPECT_TRUE(has(message_of("(" + repeated("N", 10'000) +
                             "tq\1"
                             "cA\nB\nq\2" +
                             repeated("h\2h\1R0", 1000) + "."),
                  "values"));
  // The same long text, encoded again and again.
  const std::string text = "X\0\0\x10\0"s + std::string(1 << 20, 'x') + "q\1";
  const std::string again = "h\2h\1h\3\x86R0";
  const std::string names = "c_codecs\nencode\nq\2X\6\0\0\0latin1q\3"s;
  EXPECT_NO_THROW(parse(text + names + repeated(again, 3) + "."));
  EXPECT_TRUE(has(message_of(text + names + repeated(again, 100) + "."), "more bytes"));
}

TEST(Pickle, RefusesDamage) {
  for (const std::string& bytes : {""s,
                                   "."s,
                                   "N"s,
                                   "0."s,
                                   "a."s,
                                   "]a."s,
                                   "t."s,
                                   "R."s,
                                   "NNR."s,
                                   "N)R."s,
                                   "cA\nB\nNR."s,
                                   "b."s,
                                   "Nb."s,
                                   "NNb."s,
                                   "](N\x86."s,
                                   "}(Nu."s,
                                   "NNs."s,
                                   "2."s,
                                   "h\0."s,
                                   "g5\n."s,
                                   "q\0."s,
                                   "(q\0."s,
                                   "I5"s,
                                   "I\n."s,
                                   "I5x\n."s,
                                   "I99999999999999999999\n."s,
                                   "Fx\n."s,
                                   "Sx\n."s,
                                   "S'x\n."s,
                                   "S'\n."s,
                                   "S'\\x1'\n."s,
                                   "S'\\q'\n."s,
                                   "V\\u12\n."s,
                                   "V\\U00110000\n."s,
                                   "T\xff\xff\xff\xff."s,
                                   "X\xff\xff\xff\xff."s,
                                   "B\xff\xff\xff\xff."s,
                                   "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."s,
                                   "\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s,
                                   "\x8b\xff\xff\xff\xff."s,
                                   "\x8a\x09."s,
                                   "\x95\xff\0\0\0\0\0\0\0."s,
                                   "\x80\x06N."s,
                                   "\x82\x01."s,
                                   "\x97."s,
                                   "\xff."s,
                                   "Pid\n."s,
                                   "NQ."s,
                                   "o."s,
                                   "(o."s,
                                   "(Ntp0\n0g1\n."s,
                                   "NN\x93."s,
                                   "1."s,
                                   "l."s,
                                   "d."s,
                                   "(Nd."s,
                                   "\x91."s,
                                   "\x90."s,
                                   "\x98."s,
                                   "(NO."s,
                                   "ctorch\nSize\n)R."s,
                                   "ctorch._utils\n_rebuild_parameter\n)R."s,
                                   "ctorch._utils\n_rebuild_tensor_v2\n(]K\0)))tR."s,
                                   "ccollections\nOrderedDict\n(NtR."s,
                                   "ccopyreg\n_reconstructor\n)R."s,
                                   "c_codecs\nencode\n)R."s,
                                   "c_codecs\nencode\n(X\2\0\0\0\xc4\x80X\6\0\0\0latin1tR."s}) {
    EXPECT_THROW(parse(bytes), Error) << testing::PrintToString(bytes);
  }
  const std::string message = message_of("]N\xfe");
  EXPECT_TRUE(has(message, "0xfe at byte 2")) << message;
  EXPECT_TRUE(has(message_of("(S'a'\nNS'a'\nNd."), "twice"));
  EXPECT_TRUE(has(message_of("(K\1NK\1Nd."), "twice"));
}

TEST(Pickle, RefusesArraysThatTheirBytesAreNot) {
  const auto array = [](const std::string& shape, const std::string& data) {
    return "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n" + shape +
           "cnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n" + data + "tb.";
  };
  EXPECT_TRUE(parse(array("(I2\nt", "S'ab'\n"))
                  .value.tensor()
                  ->equal(torch::tensor({97, 98}, torch::kUInt8)));
  for (const char* shape : {"(I3\nt", "(I-2\nt", "(I-1\nI-2\nt", "(I4294967296\nI4294967296\nt",
                            "N", "(Nt", "(I9223372036854775807\nI9223372036854775807\nI0\nt"}) {
    EXPECT_THROW(parse(array(shape, "S'ab'\n")), Error) << shape;
  }
  EXPECT_THROW(parse(array("(I2\nt", "N")), Error);
  EXPECT_THROW(parse(array("(" + repeated("I1\n", 33) + "t", "S'a'\n")), Error);
}

TEST(Pickle, SurvivesDamage) {
  for (const char* name :
       {"values_protocol0.pkl", "values_protocol2.pkl", "values_protocol5.pkl"}) {
    const std::string bytes = read_file(fixture(name));
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_THROW(parse(bytes.substr(0, i)), Error) << name << " " << i;
      for (const char byte : {'\0', '(', 'R', '\xff'}) {
        std::string damaged = bytes;
        damaged[i] = byte;
        const auto try_to_parse = [&] {
          try {
            parse(damaged);
          } catch (const Error&) {
          }
        };
        EXPECT_NO_THROW(try_to_parse()) << name << " " << i;
      }
    }
  }
}

TEST(Pickle, TakesOneOfMany) {
  const std::string bytes = "I1\n.I2\n.rest";
  std::string_view view = bytes;
  EXPECT_EQ(take_pickle("file", view).value.integer(), 1);
  EXPECT_EQ(take_pickle("file", view).value.integer(), 2);
  EXPECT_EQ(view, "rest");
  const TempDir folder;
  std::ofstream(folder.path() / "file.pkl", std::ios::binary) << bytes;
  EXPECT_THROW(read_pickle(folder.path() / "file.pkl"), Error);
  EXPECT_THROW(read_pickle(folder.path() / "none.pkl"), Error);
}

TEST(CifarPython, ReadsBatchesOfPython2And3) {
  const torch::Tensor pixels =
      torch::arange(2 * 3072).remainder(251).to(torch::kUInt8).reshape({2, 3, 32, 32});
  for (const char* name :
       {"cifar10_python2.pkl", "cifar10_protocol3.pkl", "cifar10_protocol5.pkl"}) {
    const auto [images, labels] = read_cifar_python(fixture(name));
    EXPECT_TRUE(images.equal(pixels)) << name;
    EXPECT_TRUE(labels.equal(torch::tensor({3, 9}, torch::kInt64))) << name;
  }
  const auto [images, labels] = read_cifar_python(fixture("cifar100_python2.pkl"));
  EXPECT_TRUE(images.equal(pixels));
  EXPECT_TRUE(labels.equal(torch::tensor({99, 0}, torch::kInt64)));
}

TEST(CifarPython, RefusesOtherPickles) {
  const TempDir folder;
  const auto path = folder.path() / "batch";
  const auto message = [&](const std::string& bytes) -> std::string {
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      read_cifar_python(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_TRUE(has(message("(lp0\n."), "'labels'"));
  EXPECT_TRUE(has(message("(dS'label_names'\n(ls."), "'labels'"));
  EXPECT_TRUE(has(message("(dS'data'\nNsS'labels'\n(ls."), "[N, 3072]"));
  // A label of 10 in CIFAR-10; one label too few.
  std::string batch = read_file(fixture("cifar10_protocol3.pkl"));
  const size_t at = batch.find("K\x03K\x09");
  ASSERT_NE(at, std::string::npos);
  batch[at + 3] = 10;
  EXPECT_TRUE(has(message(batch), "label 1")) << message(batch);
  batch.erase(at + 2, 2);
  EXPECT_TRUE(has(message(batch), "list of 2")) << message(batch);
  EXPECT_TRUE(has(message(batch.substr(0, batch.size() / 2)), "cut short"));
}

}  // namespace
}  // namespace ddaebm
