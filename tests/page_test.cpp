// The live page in a real browser; page_test.py says what is looked at.

#include <cstdlib>

#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>

#include "ddaebm/serve/service.h"

namespace ddaebm::serve {
namespace {

TEST(Page, WorksInChromium) {
  if (std::system("(command -v chromium-headless-shell || command -v chromium || "
                  "command -v chromium-browser) >/dev/null") != 0) {
    GTEST_SKIP() << "no chromium: apt-get install chromium-headless-shell";
  }
  const TempDir folder;
  const auto run = folder.path() / "run";
  const auto trained =
      run_app({"train", "moons", "--out", run.string(), "--quiet", "--set", "net.trunk=[16]",
               "--set", "net.branch=[16]", "--set", "train.iterations=40", "--set",
               "train.log_every=4", "--set", "train.evaluation_samples=1000"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  ServiceOptions options;
  options.run = run;
  options.calibration = 1000;
  options.warn = [](const std::string&) {};
  Service service(options);
  const HttpServer server({}, service);
  const std::string command = "timeout 120 python3 " DDAEBM_TESTS_FOLDER
                              "/page_test.py http://127.0.0.1:" +
                              std::to_string(server.port()) + "/";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace ddaebm::serve
