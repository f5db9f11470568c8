#include "ddaebm/io/report.h"

#include <string>

#include "temp_dir.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"

namespace ddaebm {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string without(std::string text, const std::string& part) {
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part)) {
    text.erase(at, part.size());
  }
  return text;
}

// What every report has to be, whatever is in the folder.
void expect_sound(const std::string& html) {
  EXPECT_EQ(html.rfind("<!doctype html>", 0), 0U);
  EXPECT_NE(html.find("</body></html>"), std::string::npos);
  for (const std::string tag : {"section", "div", "figure", "pre", "svg", "h1", "style", "title"}) {
    EXPECT_EQ(count(html, "<" + tag + ">") + count(html, "<" + tag + " "),
              count(html, "</" + tag + ">"))
        << tag;
  }
  // The name of SVG's namespace is no address that anything is fetched from.
  const std::string rest = without(html, "xmlns=\"http://www.w3.org/2000/svg\"");
  for (const char* outside : {"http:", "https:", "<link", "<script", "@import", "url("}) {
    EXPECT_EQ(count(rest, outside), 0U) << outside;
  }
  EXPECT_EQ(count(html, "src="), count(html, "src=\"data:image/png;base64,"));
}

std::string report_of(const std::filesystem::path& run) {
  write_report(run);
  return read_file(run / "report.html");
}

constexpr const char* kMetrics =
    R"({"iteration":100,"energy":-0.5,"generator":2.5,"penalty":0.1,"lr":0.001}
{"iteration":200,"energy":-0.75,"generator":2.25,"penalty":0.2,"lr":0.001}
{"iteration":200,"kl":0.91,"js":0.25,"hq":0.5,"modes":7.0,"mmd":0.01}
)";

TEST(Report, HoldsSettingsCurvesNumbersAndPicture) {
  const TempDir run;
  write_file(run.path() / "config.toml", "[train]\nlr = 0.001\n");
  write_file(run.path() / "metrics.jsonl", kMetrics);
  write_png(run.path() / "density.png", torch::full({4, 4, 3}, 200, torch::kUInt8));
  const std::string html = report_of(run.path());
  expect_sound(html);
  EXPECT_EQ(count(html, "<img"), 1U);
  EXPECT_NE(html.find("200 iterations done"), std::string::npos);
  EXPECT_NE(html.find("<div>kl<b>0.91</b>"), std::string::npos);
  EXPECT_NE(html.find("<div>modes<b>7</b>"), std::string::npos);
  EXPECT_NE(html.find("lr = 0.001"), std::string::npos);
  EXPECT_NE(html.find("Step size"), std::string::npos);
  EXPECT_GE(count(html, "<svg"), 3U);
}

TEST(Report, LeavesOutWhatItDoesNotUnderstand) {
  const TempDir run;
  for (const char* text : {"{", "[1]", "{}", R"({"out":[{"data":1}],"energies":[{"name":"x"}]})"}) {
    write_file(run.path() / "ood.json", text);
    write_file(run.path() / "evaluation.json", text);
    const auto html = report_of(run.path());
    expect_sound(html);
    EXPECT_EQ(count(html, "<table"), 0U) << text;
  }
}

TEST(Report, ThePictureIsTheFilesBytes) {
  const TempDir run;
  // "Man" -> "TWFu", "Ma" -> "TWE=", "M" -> "TQ=="
  write_file(run.path() / "density.png", "ManMa");
  EXPECT_NE(report_of(run.path()).find("base64,TWFuTWE=\""), std::string::npos);
  write_file(run.path() / "density.png", "M");
  EXPECT_NE(report_of(run.path()).find("base64,TQ==\""), std::string::npos);
}

TEST(Report, EscapesWhatAFolderOrAFileIsCalled) {
  const TempDir folder;
  const auto run = folder.path() / "<script>alert(1)&";
  std::filesystem::create_directory(run);
  write_file(run / "config.toml", "name = \"</pre><img src=x onerror=y>\"\n");
  const std::string html = report_of(run);
  EXPECT_EQ(count(html, "<script"), 0U);
  EXPECT_EQ(count(html, "<img"), 0U);
  EXPECT_NE(html.find("<h1>&lt;script&gt;alert(1)&amp;</h1>"), std::string::npos);
  EXPECT_NE(html.find("<title>&lt;script&gt;alert(1)&amp;"), std::string::npos);
  EXPECT_NE(html.find("&lt;/pre&gt;"), std::string::npos);
}

TEST(Report, WorksWithSettingsAlone) {
  const TempDir run;
  write_file(run.path() / "config.toml", "seed = 3\n");
  const std::string html = report_of(run.path());
  expect_sound(html);
  EXPECT_NE(html.find("seed = 3"), std::string::npos);
  EXPECT_EQ(html.find("iterations done"), std::string::npos);
}

TEST(Report, PassesOverLinesThatAKilledRunLeft) {
  const TempDir run;
  write_file(run.path() / "config.toml", "seed = 3\n");
  write_file(run.path() / "metrics.jsonl",
             std::string(kMetrics) + "\n[1]\n{\"iteration\":\"x\",\"kl\":5}\n{\"kl\":6}\n" +
                 R"({"iteration":300,"energy":null,"generator":1.0})" + "\n" +
                 R"({"iteration":400,"ener)");
  const std::string html = report_of(run.path());
  expect_sound(html);
  EXPECT_NE(html.find("300 iterations done"), std::string::npos);
  EXPECT_NE(html.find("<div>kl<b>0.91</b>"), std::string::npos);
}

TEST(Report, WritesCountsOfIterationsInFull) {
  const TempDir run;
  write_file(run.path() / "metrics.jsonl", "{\"iteration\":12345678,\"energy\":1}\n");
  EXPECT_NE(report_of(run.path()).find("12345678 iterations done"), std::string::npos);
}

}  // namespace
}  // namespace ddaebm
