#include "ddaebm/io/csv.h"

#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>

#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"

namespace ddaebm {
namespace {

using Names = std::vector<std::string>;

Csv parse(const std::string& text) {
  const TempDir folder;
  std::ofstream(folder.path() / "file.csv", std::ios::binary) << text;
  return read_csv(folder.path() / "file.csv");
}

// The message without the path.
std::string message_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    const std::string message = error.what();
    return message.substr(message.find(".csv: ") + 6);
  }
  return "no error";
}

const torch::Tensor kTwoByTwo = torch::tensor({{1.0, 2.5}, {-3.0, 4e-3}}, torch::kFloat64);

TEST(Csv, FindsSeparatorAndHeader) {
  for (const char* text : {"1,2.5\n-3,4e-3\n", "1;2.5\n-3;4e-3", "1\t2.5\r\n-3\t4e-3\r\n\r\n",
                           "\xef\xbb\xbf 1 , +2.5\n# comment\n\n-3,\"4e-3\"\n"}) {
    const Csv csv = parse(text);
    EXPECT_TRUE(csv.rows.equal(kTwoByTwo)) << text;
    EXPECT_TRUE(csv.names.empty()) << text;
  }
  const Csv csv = parse("# from elsewhere\n\"a, \"\"b\"\"\", y\n1,2.5\n-3,4e-3\n");
  EXPECT_TRUE(csv.rows.equal(kTwoByTwo));
  EXPECT_EQ(csv.names, (Names{"a, \"b\"", "y"}));
}

TEST(Csv, OneColumn) {
  const Csv csv = parse("x\n1\n2\n");
  EXPECT_EQ(csv.names, Names{"x"});
  EXPECT_TRUE(csv.rows.equal(torch::tensor({{1.0}, {2.0}}, torch::kFloat64)));
}

TEST(Csv, ReadsNanAndInfinity) {
  const Csv csv = parse("nan,inf\n-inf,NaN\n");
  EXPECT_TRUE(std::isnan(csv.rows[0][0].item<double>()));
  EXPECT_EQ(csv.rows[0][1].item<double>(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(csv.rows[1][0].item<double>(), -std::numeric_limits<double>::infinity());
}

TEST(Csv, ErrorsNameLineAndColumn) {
  EXPECT_EQ(message_of(""), "no rows of numbers");
  EXPECT_EQ(message_of("x,y\n"), "no rows of numbers");
  EXPECT_EQ(message_of("# only\n\n"), "no rows of numbers");
  EXPECT_EQ(message_of("x,y\n1,2\n3\n"), "line 3: 1 cells, the lines before have 2");
  EXPECT_EQ(message_of("1,2\n\n3,\n"), "line 3, column 2: the cell is empty");
  EXPECT_EQ(message_of("1,,2\n3,4,5\n"), "line 1, column 2: the cell is empty");
  EXPECT_EQ(message_of("1,2\n3,\"4\n"), "line 2: a quote is left open");
  EXPECT_EQ(message_of("1,2\n3,4\x1b\n"),
            "line 2, column 2: \"4\\x1b\" is not a number that float64 holds");
  for (const char* cell : {"1.5.2", "0x10", "1e999", "+-1", "--1", "1 2", "1,5"}) {
    EXPECT_NE(message_of(std::string("1;1\n1;") + cell).find("line 2, column 2: "),
              std::string::npos)
        << cell;
  }
}

TEST(Csv, RoundTripIsExact) {
  const TempDir folder;
  const auto path = folder.path() / "file.csv";
  const Csv csv{
      {"x", "# y;\"z\""},
      torch::tensor({{0.1, 1.0 / 3.0}, {-1e-310, 1.7976931348623157e308}}, torch::kFloat64)};
  write_csv(path, csv);
  const Csv found = read_csv(path);
  EXPECT_EQ(found.names, csv.names);
  EXPECT_TRUE(found.rows.equal(csv.rows));

  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  write_csv(path, {{}, torch::tensor({{nan, -nan, -infinity}}, torch::kFloat64)});
  EXPECT_EQ(read_csv(path).rows.isnan().sum().item<int64_t>(), 2);
}

TEST(Csv, RefusesNamesThatWouldNotReadBack) {
  const TempDir folder;
  for (const Names& names : {Names{"1", "2"}, Names{"a", ""}, Names{"a", "b\nc"}}) {
    EXPECT_THROW(write_csv(folder.path() / "file.csv", {names, kTwoByTwo}), Error);
  }
}

TEST(Csv, ReadsAMillionRowsQuickly) {
  const TempDir folder;
  std::string text = "x,y\n";
  for (int i = 0; i < 1'000'000; ++i) text += "-1.2345678901234567,0.98765432109876543\n";
  write_file(folder.path() / "file.csv", text);
  const auto start = std::chrono::steady_clock::now();
  const Csv csv = read_csv(folder.path() / "file.csv");
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(csv.rows.sizes(), torch::IntArrayRef({1'000'000, 2}));
  EXPECT_LT(taken.count(), 20.0);  // about 0.3 s; loose, for sanitizers and busy machines
}

}  // namespace
}  // namespace ddaebm
