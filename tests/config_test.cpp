#include "ddaebm/config.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

enum class Colour { red, green, blue };

struct Inner {
  double rate = 1e-4;
  double wide = 20.0;
  double limit = 1e8;
  double share = 0.5;
  double part = 1.0;
  bool on = true;
  std::vector<int64_t> widths = {300, 300};

  void visit(Fields& f) {
    f("rate", rate, more_than(0), "a step size");
    f("wide", wide, "any number");
    f("limit", limit, at_least(-3), "bounded below");
    f("share", share, between(0, 1), "bounded on both sides");
    f("part", part, Bounds{.low = 0, .high = 2, .low_is_allowed = false}, "without its lower end");
    f("on", on, "a switch");
    f.retired("spread", 0.5);
    f("widths", widths, at_least(1), "a list");
  }
};

struct Deeper {
  Inner inner;
  void visit(Fields& f) { f.section("inner", inner); }
};

struct All {
  std::string name = "plain";
  int64_t count = 7;
  Colour colour = Colour::green;
  Inner part;
  Deeper deep;

  Fields fields() {
    Fields f;
    f("name", name, "a text");
    f("count", count, at_least(1), "a whole number");
    f("colour", colour, {"red", "green", "blue"}, "a choice");
    f.section("part", part);
    f.section("deep", deep);
    return f;
  }
};

All read(const std::string& text, const std::vector<std::string>& changes = {}) {
  auto file = ConfigFile::parse(text, "my.toml");
  for (const auto& change : changes) file.set(change);
  All all;
  file.fill(all.fields());
  return all;
}

std::string error_of(const std::string& text, const std::vector<std::string>& changes = {}) {
  try {
    read(text, changes);
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos) << "not one line: " << what;
    return what;
  }
  return "no error";
}

void expect_mentions(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

TEST(Config, AnEmptyFileLeavesTheDefaults) {
  const All all = read("");
  EXPECT_EQ(all.name, "plain");
  EXPECT_EQ(all.count, 7);
  EXPECT_EQ(all.colour, Colour::green);
  EXPECT_EQ(all.part.rate, 1e-4);
  EXPECT_EQ(all.part.widths, (std::vector<int64_t>{300, 300}));
}

TEST(Config, ReadsEveryKindOfValue) {
  const All all = read(R"(
name = "x y" # a comment
count = 12
colour = "blue"
[part]
rate = 3e-5
wide = -2
on = false
widths = [1, 2, 3]
[deep.inner]
share = 1
)");
  EXPECT_EQ(all.name, "x y");
  EXPECT_EQ(all.count, 12);
  EXPECT_EQ(all.colour, Colour::blue);
  EXPECT_EQ(all.part.rate, 3e-5);
  EXPECT_EQ(all.part.wide, -2.0);
  EXPECT_FALSE(all.part.on);
  EXPECT_EQ(all.part.widths, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(all.deep.inner.share, 1.0);
  EXPECT_EQ(all.part.share, 0.5) << "another section's key of the same name";
}

TEST(Config, SetOverridesTheFileAndTheLastOneWins) {
  const All all =
      read("count = 2\n[part]\nrate = 1.0\n",
           {"count=3", "part.rate=2e-3", "count=4", "deep.inner.share=0.25", "part.on=false",
            "part.widths=[5, 6]", "colour=red", "name=data/my file.csv"});
  EXPECT_EQ(all.count, 4);
  EXPECT_EQ(all.part.rate, 2e-3);
  EXPECT_EQ(all.deep.inner.share, 0.25);
  EXPECT_FALSE(all.part.on);
  EXPECT_EQ(all.part.widths, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(all.colour, Colour::red) << "a bare word is a text";
  EXPECT_EQ(all.name, "data/my file.csv");
  EXPECT_EQ(read("", {"name=\"quoted\""}).name, "quoted");
  EXPECT_EQ(read("", {"name=a=b.csv"}).name, "a=b.csv") << "the first = divides";
}

TEST(Config, SetErrorsNameTheCommandLine) {
  expect_mentions(error_of("", {"count"}), {"--set count", "key=value"});
  expect_mentions(error_of("", {"=3"}), {"--set", "key=value"});
  expect_mentions(error_of("", {"part.rate=fast"}), {"--set", "'part.rate'", "fast", "a number"});
  expect_mentions(error_of("", {"part.rate="}), {"--set", "'part.rate'", "a number"});
  expect_mentions(error_of("", {"count=0"}), {"--set", "'count'", "0", "at least 1"});
  expect_mentions(error_of("", {"part.rat=1"}), {"--set", "'part.rat'", "'part.rate'"});
  expect_mentions(error_of("", {"part..rate=1"}), {"--set", "unknown setting 'part..rate'"});
}

TEST(Config, PrintedSettingsReadBackAsTheSame) {
  All all;
  all.name = "quote \" backslash \\ and 'single', line\nbreak, \xc3\xbc";
  all.count = 9007199254740993;  // not a double
  all.colour = Colour::red;
  all.part.widths = {7};
  all.part.on = false;
  for (const double value : {1e-4, 20.0, 1e8, 1e22, 0.1, 1.0 / 3.0, 5e-324, 1.7976931348623157e308,
                             123456789.125, 1e16, 4.0}) {
    all.part.rate = all.part.wide = all.deep.inner.limit = value;
    const std::string text = to_toml(all.fields());
    SCOPED_TRACE(text);
    const All again = read(text);
    EXPECT_EQ(again.part.rate, value);
    EXPECT_EQ(again.part.wide, value);
    EXPECT_EQ(again.deep.inner.limit, value);
    EXPECT_EQ(again.name, all.name);
    EXPECT_EQ(again.count, all.count);
    EXPECT_EQ(again.colour, all.colour);
    EXPECT_EQ(again.part.widths, all.part.widths);
    EXPECT_EQ(again.part.on, all.part.on);
    EXPECT_EQ(to_toml(All(again).fields()), text);
  }
}

TEST(Config, PrintedSettingsNameEveryKeyAndItsMeaning) {
  All all;
  const std::string text = to_toml(all.fields());
  expect_mentions(text,
                  {"name = \"plain\"", "# a text", "[part]", "rate = 0.0001", "wide = 20.0",
                   "# a step size", "[deep.inner]", "widths = [300, 300]", "colour = \"green\""});
  EXPECT_EQ(all.fields().list().size(), 17U);
}

TEST(Config, AnUnknownKeyNamesItsPlaceAndTheNearestKey) {
  EXPECT_EQ(error_of("\n\n[part]\nratte = 1.0\n"),
            "my.toml:4: unknown setting 'part.ratte'; did you mean 'part.rate'?");
  expect_mentions(error_of("[deep.iner]\nshare = 1\n"), {"my.toml:2", "'deep.inner.share'"});
  const std::string far = error_of("zzzzzzzz = 1\n");
  expect_mentions(far, {"my.toml:1", "'zzzzzzzz'", "ddaebm settings"});
  EXPECT_EQ(far.find("did you mean"), std::string::npos) << far;
}

TEST(Config, ARetiredSettingIsReadWhereItDidNothing) {
  EXPECT_TRUE(read("[part]\nspread = 0.5\non = true\n").part.on);
  EXPECT_EQ(error_of("[part]\nspread = 0.7\n"),
            "my.toml:2: 'part.spread' is no longer a setting, and 0.5 the only value that is still "
            "read");
  expect_mentions(error_of("", {"part.spread=off"}), {"'part.spread' is no longer a setting"});
  All all;
  EXPECT_EQ(to_toml(all.fields()).find("spread"), std::string::npos);
}

TEST(Config, AWrongTypeSaysWhatIsWanted) {
  EXPECT_EQ(error_of("count = \"many\"\n"),
            "my.toml:1: 'count' is \"many\", it must be a whole number");
  expect_mentions(error_of("count = 1.5\n"), {"my.toml:1", "'count'", "1.5", "a whole number"});
  expect_mentions(error_of("count = true\n"), {"'count'", "true", "a whole number"});
  expect_mentions(error_of("name = 3\n"), {"'name'", "3", "a text in quotes"});
  expect_mentions(error_of("colour = 1\n"), {"'colour'", "red, green, blue"});
  expect_mentions(error_of("[part]\non = 1\n"), {"my.toml:2", "'part.on'", "true or false"});
  expect_mentions(error_of("[part]\nrate = \"1\"\n"), {"'part.rate'", "a number"});
  expect_mentions(error_of("[part]\nrate = 1979-05-27\n"), {"'part.rate'", "a number"});
  for (const char* list : {"3", "[1.0]", "[1, \"a\"]", "[[1]]", "[1, 2.5]"}) {
    SCOPED_TRACE(list);
    expect_mentions(error_of(std::string("[part]\nwidths = ") + list + "\n"),
                    {"'part.widths'", "a list of whole numbers"});
  }
  EXPECT_TRUE(read("[part]\nwidths = []\n").part.widths.empty());
}

TEST(Config, AnErrorStaysOneShortLine) {
  std::string list = "[part]\nrate = [";
  for (int i = 0; i < 500; ++i) list += "\"element\", ";
  const std::string message = error_of(list + "]\n");
  expect_mentions(message, {"'part.rate'", "a number"});
  EXPECT_LT(message.size(), 200U);
  expect_mentions(error_of("count = \"\"\"two\nlines\"\"\"\n"), {"'count'", "a whole number"});
}

TEST(Config, AValueOutOfRangeSaysTheRange) {
  EXPECT_EQ(error_of("count = 0\n"), "my.toml:1: 'count' is 0, it must be at least 1");
  expect_mentions(error_of("[part]\nrate = 0\n"), {"'part.rate'", "more than 0"});
  expect_mentions(error_of("[part]\nrate = -1e-9\n"), {"'part.rate'", "more than 0"});
  expect_mentions(error_of("[part]\nlimit = -3.5\n"), {"at least -3"});
  expect_mentions(error_of("[part]\nshare = 1.0001\n"), {"1.0001", "between 0 and 1"});
  expect_mentions(error_of("[part]\nshare = -0.1\n"), {"between 0 and 1"});
  expect_mentions(error_of("[part]\npart = 0\n"), {"more than 0 and at most 2"});
  expect_mentions(error_of("[part]\npart = 2.5\n"), {"more than 0 and at most 2"});
  expect_mentions(error_of("[part]\nwidths = [3, 0]\n"), {"'part.widths'", "0", "at least 1"});
  EXPECT_EQ(read("[part]\nshare = 0\nlimit = -3\n").part.limit, -3.0) << "the ends are allowed";
}

TEST(Config, NumbersMustBeFinite) {
  for (const char* value : {"nan", "inf", "-inf", "+nan"}) {
    SCOPED_TRACE(value);
    expect_mentions(error_of(std::string("[part]\nwide = ") + value + "\n"),
                    {"my.toml:2", "'part.wide'", "a finite number"});
    expect_mentions(error_of("", {std::string("part.share=") + value}),
                    {"'part.share'", "a finite number"});
  }
}

TEST(Config, AnUnknownChoiceListsTheChoices) {
  EXPECT_EQ(error_of("colour = \"pink\"\n"),
            "my.toml:1: 'colour' is \"pink\", it must be one of red, green, blue");
}

TEST(Config, BrokenTomlNamesTheLine) {
  expect_mentions(error_of("count = 1\nname = \n"), {"my.toml:2"});
  expect_mentions(error_of("[part\n"), {"my.toml:1"});
  expect_mentions(error_of("count = 1\ncount = 2\n"), {"my.toml:2", "count"});
  expect_mentions(error_of("name = \"\xff\"\n"), {"my.toml:1"});
}

// Found by libFuzzer: toml++ assumed that neither happens.
TEST(Config, LettersForSpacesAndNamesThatAreNoneAreBrokenToml) {
  for (const char* letter : {"\u00e9", "\u3042", "\ufebf"}) {
    expect_mentions(error_of(std::string("count = 1 ") + letter), {"my.toml:1"});
    expect_mentions(error_of(std::string(letter) + " = 1"), {"my.toml:1"});
    expect_mentions(error_of("[" + std::string(letter) + "]"), {"my.toml:1"});
  }
  expect_mentions(error_of("[=]"), {"my.toml:1"});
}

TEST(Config, ASectionIsNoValueAndAValueNoSection) {
  expect_mentions(error_of("part = 3\n"), {"my.toml:1", "'part' is a section"});
  expect_mentions(error_of("[[part]]\nrate = 1.0\n"), {"my.toml:1", "'part' is a section"});
  expect_mentions(error_of("[count]\n"), {"my.toml:1", "'count'", "a whole number"});
  expect_mentions(error_of("[count]\nx = 1\n"), {"my.toml:1", "'count'", "a whole number"});
  expect_mentions(error_of("[prat]\n"), {"my.toml:1", "unknown setting 'prat'"});
  expect_mentions(error_of("", {"part=3"}), {"--set", "'part' is a section"});
  expect_mentions(error_of("[part]\n", {"part=3"}), {"--set part=3", "'part' is a section"});
  expect_mentions(error_of("count = 1\n", {"count.x=3"}), {"--set count.x=3", "is a value"});
}

TEST(Config, TextGivesAKeyBeforeTheFieldsAreKnown) {
  const auto file = ConfigFile::parse("name = \"here\"\ncount = 3\n", "my.toml");
  EXPECT_EQ(file.text("name", "fallback"), "here");
  EXPECT_EQ(file.text("missing", "fallback"), "fallback");
  EXPECT_THROW(file.text("count", "fallback"), Error);
}

}  // namespace
}  // namespace ddaebm
