// The server: what it answers, to whom, within which limits; and what hostile requests get.

#include <chrono>
#include <cmath>
#include <future>
#include <random>
#include <regex>
#include <thread>

#include "http_client.h"
#include "image_fixtures.h"
#include "refusals.h"
#include "run_app.h"
#include "temp_dir.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/serve/service.h"
#include "ddaebm/train/checkpoint.h"
#include "ddaebm/train/ood.h"

namespace ddaebm::serve {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;
using std::chrono::milliseconds;

// ---- what is served

// One small run for all tests, of two checkpoints.
const fs::path& trained_run() {
  static const TempDir folder;
  static const fs::path run = [] {
    const auto out = folder.path() / "moons-run";
    const auto result = run_app(
        {"train", "moons", "--out", out.string(), "--quiet", "--set", "net.trunk=[8]", "--set",
         "net.branch=[8]", "--set", "train.iterations=8", "--set", "train.log_every=2", "--set",
         "train.checkpoint_every=4", "--set", "train.evaluation_samples=1000"});
    EXPECT_EQ(result.code, 0) << result.err;
    return out;
  }();
  return run;
}

// A server of that run, within the test.
struct Served {
  explicit Served(const std::function<void(ServiceOptions&, HttpOptions&)>& change = {},
                  const fs::path& run = trained_run())
      : service(service_options(run, change)), server(http_options(change), service) {}

  Reply get(const std::string& target) { return ask(server.port(), "GET", target); }
  Reply post(const std::string& target, const std::string& body) {
    return ask(server.port(), "POST", target, body);
  }

  using Change = std::function<void(ServiceOptions&, HttpOptions&)>;
  static ServiceOptions service_options(const fs::path& run, const Change& change) {
    ServiceOptions options;
    options.run = run;
    options.calibration = 200;
    options.version = "test";
    options.warn = [](const std::string&) {};
    HttpOptions unused;
    if (change) change(options, unused);
    return options;
  }
  static HttpOptions http_options(const Change& change) {
    HttpOptions options;
    ServiceOptions unused;
    if (change) change(unused, options);
    return options;
  }

  Service service;
  HttpServer server;
};

TEST(Serve, ScoresAreTheModelsOwnInOrder) {
  Served served;
  const auto rows = torch::randn({7, 2}, torch::kDouble);
  Json request;
  for (int64_t i = 0; i < 7; ++i) {
    request["rows"].push_back({rows[i][0].item<double>(), rows[i][1].item<double>()});
  }
  const auto expected = Model::load(trained_run(), torch::kCPU).log_density(rows);
  const Reply by_json = served.post("/v1/score", request.dump());
  const Reply by_npy = served.post("/v1/score", format_npy("", rows));
  ASSERT_EQ(by_json.status, 200) << by_json.body;
  EXPECT_EQ(by_json.body, by_npy.body);
  const auto answer = Json::parse(by_json.body);
  EXPECT_EQ(answer["iteration"], 8);
  ASSERT_EQ(answer["scores"].size(), 7U);
  for (int64_t i = 0; i < 7; ++i) {
    EXPECT_NEAR(answer["scores"][static_cast<size_t>(i)]["log_density"].get<double>(),
                expected[i].item<double>(), 1e-5);
  }
}

TEST(Serve, PValuesCountTrainingScoresThatAreAsLow) {
  const Reference reference({3, 1, 2, 2, std::nan("")});
  EXPECT_DOUBLE_EQ(reference.p_value(0), 1.0 / 5);
  EXPECT_DOUBLE_EQ(reference.p_value(1), 2.0 / 5);
  EXPECT_DOUBLE_EQ(reference.p_value(2), 4.0 / 5);
  EXPECT_DOUBLE_EQ(reference.p_value(9), 1.0);
  EXPECT_TRUE(std::isnan(reference.p_value(std::nan(""))));
  EXPECT_TRUE(std::isnan(Reference().p_value(1)));
}

TEST(Serve, AnswersByTheThresholdOfOodElseByTrainingScores) {
  const TempDir folder;
  fs::copy(trained_run(), folder.path() / "run", fs::copy_options::recursive);
  const std::string far = R"({"rows": [[0, 0], [1000, 1000]]})";
  const auto answers = [&] {
    Served served({}, folder.path() / "run");
    const auto model = Json::parse(served.get("/v1/model").body)["model"];
    const auto scores = Json::parse(served.post("/v1/score", far).body)["scores"];
    return std::tuple(model["threshold"]["source"].get<std::string>(),
                      scores[0]["answer"].get<std::string>(),
                      scores[1]["answer"].get<std::string>());
  };
  EXPECT_EQ(std::get<0>(answers()), "training scores");
  write_threshold(folder.path() / "run", {1e9, 0.05, 8, "moons"});
  EXPECT_EQ(answers(), std::tuple("ood", "out", "out"));
  write_threshold(folder.path() / "run", {-1e9, 0.05, 8, "moons"});
  EXPECT_EQ(std::get<1>(answers()), "in");
  // One of another checkpoint does not count.
  write_threshold(folder.path() / "run", {1e9, 0.05, 4, "moons"});
  EXPECT_EQ(std::get<0>(answers()), "training scores");
}

TEST(Serve, AnswersByTheProfileWhereThatIsKept) {
  const TempDir folder;
  const auto run = folder.path() / "run";
  fs::copy(trained_run(), run, fs::copy_options::recursive);
  Model model = Model::load(run, torch::kCPU);
  Random random(torch::kCPU, 3);
  const UsualProfiles usual(energy_profiles(model, random.normal({200, 2}, torch::kDouble)));
  write_threshold(run, {-1e9, 0.05, 8, "moons", Threshold::OfProfiles{-3, usual}});
  Served served({}, run);
  const auto told = Json::parse(served.get("/v1/model").body)["model"]["threshold"];
  EXPECT_EQ(told["profile"], -3);
  const auto rows = torch::tensor({{0.1, 0.2}, {1000.0, 1000.0}}, torch::kDouble);
  const auto scores = Json::parse(
      served.post("/v1/score", R"({"rows": [[0.1, 0.2], [1000, 1000]]})").body)["scores"];
  const auto wanted = usual.scores(energy_profiles(model, rows));
  EXPECT_NEAR(scores[0]["profile"].get<double>(), wanted[0], 1e-4);
  EXPECT_EQ(scores[0]["answer"], "in");
  EXPECT_EQ(scores[1]["answer"], "out") << "whatever its log-density is";
}

TEST(Serve, TrainingScoresAreKeptWithTheRun) {
  const TempDir folder;
  fs::copy(trained_run(), folder.path() / "run", fs::copy_options::recursive);
  const std::string row = R"({"rows": [[0.1, 0.2]]})";
  const auto first = Served({}, folder.path() / "run").post("/v1/score", row).body;
  EXPECT_TRUE(fs::exists(folder.path() / "run" / "training_scores.safetensors"));
  // On a machine that has the run but not its data.
  const auto config = folder.path() / "run" / "config.toml";
  const auto absent =
      std::regex_replace(read_file(config), std::regex("\"moons\""), "\"/none.csv\"");
  write_file(config, absent);
  EXPECT_EQ(Served({}, folder.path() / "run").post("/v1/score", row).body, first);
  fs::remove(folder.path() / "run" / "training_scores.safetensors");
  const auto without = Json::parse(Served({}, folder.path() / "run").post("/v1/score", row).body);
  EXPECT_TRUE(without["scores"][0]["p_value"].is_null());
  EXPECT_TRUE(without["scores"][0]["answer"].is_null());
}

TEST(Serve, SamplesComeAgainWithTheirSeed) {
  Served served;
  const auto first = served.post("/v1/sample", R"({"n": 3, "seed": 5})");
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(served.post("/v1/sample", R"({"seed": 5, "n": 3})").body, first.body);
  EXPECT_NE(served.post("/v1/sample", R"({"n": 3, "seed": 6})").body, first.body);
  const auto expected = Model::load(trained_run(), torch::kCPU).sample(3, 5);
  const auto npy = served.post("/v1/sample", R"({"n": 3, "seed": 5, "format": "npy"})");
  EXPECT_TRUE(torch::equal(parse_npy("", npy.body), expected));
  const auto path =
      Json::parse(served.post("/v1/sample", R"({"n": 3, "seed": 5, "path": true})").body);
  EXPECT_EQ(path["path"].size(), 5U);
  EXPECT_EQ(path["path"][4], path["samples"]);
  EXPECT_EQ(path["samples"], Json::parse(first.body)["samples"]);
  for (const char* bad : {R"({"n": 0})", R"({"n": -1})", R"({"n": 10001})", R"({"n": 1e3})",
                          R"({"n": 99999999999999999999})", R"({"n": 18446744073709551615})",
                          R"({"m": 1})", R"({"seed": -1})", R"({"seed": "x"})", "[]", "{",
                          R"({"format": "png"})", R"({"format": "exe"})", "\xff\xfe"}) {
    EXPECT_EQ(served.post("/v1/sample", bad).status, 400) << bad;
  }
  EXPECT_EQ(served.post("/v1/sample", std::string(5000, '[')).status, 400);
}

TEST(Serve, ImagesAreScoredAndDrawn) {
  const TempDir folder;
  for (const char* part : {"train", "t10k"}) {
    const auto pixels = torch::randint(256, {40, 8, 8}, torch::kUInt8);
    put_file(folder.path() / (std::string(part) + "-images-idx3-ubyte"), idx_of(pixels));
    put_file(folder.path() / (std::string(part) + "-labels-idx1-ubyte"),
             idx_of(torch::zeros({40}, torch::kUInt8)));
  }
  const auto run = folder.path() / "run";
  const auto trained =
      run_app({"train", "moons", "--out", run.string(), "--quiet", "--set",
               "data.name=\"" + folder.path().string() + "\"", "--set", "data.logit=true", "--set",
               "net.trunk=[8]", "--set", "net.branch=[8]", "--set", "train.iterations=2", "--set",
               "train.evaluation_samples=1000"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  Served served({}, run);
  const auto model = Json::parse(served.get("/v1/model").body)["model"];
  EXPECT_EQ(model["kind"], "images");
  EXPECT_EQ(model["image"], Json({1, 8, 8}));
  EXPECT_EQ(served.get("/v1/landscape").status, 404);
  const Reply scored = served.post("/v1/score", png_of(picture(3)));
  ASSERT_EQ(scored.status, 200) << scored.body;
  EXPECT_EQ(served.post("/v1/score", png_of(picture(3))).body, scored.body);
  const std::string whole = png_of(picture(3));
  EXPECT_EQ(served.post("/v1/score", whole.substr(0, whole.size() / 2)).status, 400);
  const Reply drawn = served.post("/v1/sample", R"({"n": 4, "format": "png", "path": true})");
  ASSERT_EQ(drawn.headers.at("Content-Type"), "image/png");
  put_file(folder.path() / "drawn.png", drawn.body);
  // Two by two, from x_4 to x_0.
  EXPECT_EQ(read_png(folder.path() / "drawn.png").sizes(), (std::vector<int64_t>{5 * 18, 18, 3}));
}

// ---- what data may look like

TEST(ServeInputs, ReadRowsArraysAndPictures) {
  DataConfig data;
  const Inputs rows({2}, data);
  EXPECT_TRUE(torch::equal(rows.parse(R"( {"rows": [[1, -2.5], [3e2, 4]]} )"),
                           torch::tensor({{1.0, -2.5}, {300.0, 4.0}}, torch::kDouble)));
  EXPECT_TRUE(torch::equal(rows.parse(format_npy("", torch::tensor({{1, 2}}, torch::kInt))),
                           torch::tensor({{1.0, 2.0}}, torch::kDouble)));

  const Inputs images({3, 8, 8}, data);
  const auto one = picture(1);
  const auto expected = (one.to(torch::kDouble) / 127.5 - 1).unsqueeze(0);
  EXPECT_TRUE(torch::allclose(images.parse(png_of(one)), expected, 1e-6, 1e-6));
  EXPECT_TRUE(
      torch::allclose(images.parse(format_npy("", one.unsqueeze(0))), expected, 1e-6, 1e-6));
  EXPECT_TRUE(torch::allclose(images.parse(format_npy("", expected)), expected));
  EXPECT_TRUE(torch::allclose(images.parse(format_npy("", expected.flatten(1))), expected));
  // Others are framed to the model's size.
  EXPECT_EQ(images.parse(jpeg_of(picture(1, 20, 30))).sizes(), (std::vector<int64_t>{1, 3, 8, 8}));
  EXPECT_EQ(Inputs({1, 8, 8}, data).parse(webp_of(picture(1))).size(1), 1);

  // Logits of images: a score depends on the image alone, so the noise is always the same.
  data.logit = true;
  const Inputs logits({64}, data);
  EXPECT_EQ(logits.image(), (std::vector<int64_t>{1, 8, 8}));
  const auto grey = torch::arange(64, torch::kUInt8).view({1, 1, 8, 8}) * 4;
  const auto parsed = logits.parse(format_npy("", grey));
  EXPECT_TRUE(torch::equal(parsed, logits.parse(format_npy("", grey))));
  EXPECT_LE(
      (logits.to_images(parsed).to(torch::kInt) - grey.to(torch::kInt)).abs().max().item<int>(), 1);
}

TEST(ServeInputs, WhatIsNoDataIsAnError) {
  const Inputs rows({2}, {});
  for (const char* bad : {"",
                          " ",
                          "{",
                          "null",
                          "5",
                          "[]",
                          "{}",
                          "[[1, 2]]",
                          R"({"rows": []})",
                          R"({"rows": 5})",
                          R"({"rows": [1, 2]})",
                          R"({"rows": [[1]]})",
                          R"({"rows": [[1, 2, 3]]})",
                          R"({"rows": [[1, 2], [3]]})",
                          R"({"rows": [[1], [2, 3, 4]]})",
                          R"({"rows": [[]]})",
                          R"({"rows": [[[1, 2]]]})",
                          R"({"rows": [[1, "2"]]})",
                          R"({"rows": [[1, null]]})",
                          R"({"rows": [[1, true]]})",
                          R"({"rows": [[1, {}]]})",
                          R"({"rows": [[1, 1e999]]})",
                          R"({"rows": [[1, NaN]]})",
                          R"({"rows": [[1, 2]]} x)",
                          R"({"rows": [[1, 2]], "rows": [[1, 2]]})",
                          R"({"row": [[1, 2]]})",
                          R"({"rows": [[1, 2]], "more": 1})",
                          "\x93NUMPY",
                          "\x89PNG\r\n\x1a\n"}) {
    EXPECT_THROW(rows.parse(bad), Error) << bad;
  }
  EXPECT_THROW(rows.parse(std::string(1000000, '[')), Error);
  EXPECT_THROW(rows.parse(R"({"rows": )" + std::string(1000000, '[')), Error);
  EXPECT_THROW(rows.parse(format_npy("", torch::zeros({3}))), Error);
  EXPECT_THROW(rows.parse(format_npy("", torch::zeros({0, 2}))), Error);
  EXPECT_THROW(rows.parse(format_npy("", torch::zeros({2, 3}))), Error);
  EXPECT_THROW(rows.parse(format_npy("", torch::full({1, 2}, std::nan("")))), Error);
  EXPECT_THROW(rows.parse(png_of(picture(1))), Error);
  expect_survives_damage(R"({"rows": [[1, -2.5]]})", {'\0', '[', ']', '"', '9', '}', '\xff'},
                         [&](const std::string& body) { rows.parse(body); });
}

// ---- the worker

// A model of the run for a Worker, whose first job waits until it is let go.
struct Busy {
  explicit Busy(WorkerLimits limits)
      : worker(limits,
               [this](int64_t requests, int64_t rows) { batches.emplace_back(requests, rows); }) {
    SnapshotMaker maker(trained_run(), torch::kCPU, 10, [](const std::string&) {});
    worker.use(maker.make());
    // On a slow machine even this one may wait too long.
    const auto gate = go.get_future().share();
    for (bool begun = false; !begun;) {
      // Shared, as the worker may still be within set_value when the wait is over.
      const auto began = std::make_shared<std::promise<bool>>();
      worker.run({[began, gate](Snapshot&, const torch::Tensor&) {
                    began->set_value(true);
                    gate.wait();
                  },
                  [began](const std::exception_ptr&) { began->set_value(false); }});
      begun = began->get_future().get();
    }
  }
  bool score(int64_t n) {
    return worker.score(
        torch::zeros({n, 2}, torch::kDouble),
        {[this](Snapshot&, const torch::Tensor& scores) { sizes.push_back(scores.size(0)); },
         [this](const std::exception_ptr&) { ++failures; }});
  }
  // Lets the worker go on and waits until it has done all.
  void finish() {
    go.set_value();
    const auto last = std::make_shared<std::promise<void>>();
    while (!worker.run({[last](Snapshot&, const torch::Tensor&) { last->set_value(); },
                        [last](const std::exception_ptr&) { last->set_value(); }})) {
      std::this_thread::yield();
    }
    last->get_future().wait();
  }

  std::promise<void> go;
  std::vector<std::pair<int64_t, int64_t>> batches;
  std::vector<int64_t> sizes;
  int failures = 0;
  Worker worker;
};

TEST(ServeWorker, ScoresTogetherWhatWaitsTogether) {
  Busy busy({.batch = 10});
  for (const int64_t n : {3, 4, 2, 5, 20, 1}) EXPECT_TRUE(busy.score(n));
  busy.finish();
  EXPECT_EQ(busy.sizes, (std::vector<int64_t>{3, 4, 2, 5, 20, 1}));
  using Batches = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(busy.batches, (Batches{{3, 9}, {1, 5}, {1, 20}, {1, 1}}));
}

TEST(ServeWorker, ScoresEachRequestByItselfWhereToldTo) {
  Busy busy({.batch = 1});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(busy.score(2));
  busy.finish();
  EXPECT_EQ(busy.batches.size(), 3U);
}

TEST(ServeWorker, TakesNoMoreThanItsLimits) {
  Busy few({.queue = 2});
  EXPECT_TRUE(few.score(1));
  EXPECT_TRUE(few.score(1));
  EXPECT_FALSE(few.score(1));
  few.finish();
  Busy small({.numbers = 10});
  EXPECT_TRUE(small.score(4));
  EXPECT_FALSE(small.score(2));
  EXPECT_TRUE(small.score(1));
  small.finish();
}

TEST(ServeWorker, WhatWaitedTooLongIsNotDone) {
  Busy busy({.timeout = milliseconds(20)});
  EXPECT_TRUE(busy.score(1));
  std::this_thread::sleep_for(milliseconds(30));
  busy.finish();
  EXPECT_EQ(busy.failures, 1);
  EXPECT_TRUE(busy.sizes.empty());
}

// ---- hostile requests

TEST(ServeHostile, HugeBodiesAreRefusedUnread) {
  Served served([](ServiceOptions&, HttpOptions& http) { http.body = 1000; });
  Connection claims(served.server.port());
  claims.send("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n");
  const Reply refused = claims.read();
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.headers.at("Connection"), "close");
  const Reply sent = served.post("/v1/score", std::string(300000, ' '));
  EXPECT_EQ(sent.status, 413);
  EXPECT_NE(sent.body.find("--body"), std::string::npos);
  // Chunks have no length that could be looked at first.
  Connection chunks(served.server.port());
  chunks.send(
      "POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n");
  EXPECT_EQ(chunks.read().status, 411);
}

TEST(ServeHostile, BodiesTogetherAreBounded) {
  Served served([](ServiceOptions&, HttpOptions& http) { http.bodies = 1000; });
  const std::string row = R"({"rows": [[1, 2]]})";
  const std::string padded = row + std::string(900 - row.size(), ' ');
  const std::string text = request_text("POST", "/v1/score", padded);
  Reply first, second;
  // Where the server comes to the second before the first, the first is the one that is refused.
  for (int i = 0; i < 100 && second.status != 429; ++i) {
    Connection connection(served.server.port());
    connection.send(text.substr(0, text.size() - 1));
    second = served.post("/v1/score", padded);
    connection.send(" ");
    first = connection.read();
  }
  ASSERT_EQ(second.status, 429);
  EXPECT_EQ(second.headers.at("Retry-After"), "1");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(served.post("/v1/score", padded).status, 200);
}

TEST(ServeHostile, SlowClientsAreHungUpOn) {
  Served served([](ServiceOptions&, HttpOptions& http) { http.timeout = milliseconds(300); });
  const auto drip = [&](const std::string& start) {
    Connection connection(served.server.port());
    connection.send(start);
    bool taken = true;
    // A byte now and then does not help: the time is for the whole.
    for (int i = 0; i < 40 && taken; ++i) {
      taken = connection.send("a");
      std::this_thread::sleep_for(milliseconds(25));
    }
    return connection.ended();
  };
  EXPECT_TRUE(drip("GET /healthz HTTP/1.1\r\nX-Slow: "));
  EXPECT_TRUE(drip("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"));
  EXPECT_TRUE(drip(""));
  EXPECT_EQ(served.get("/healthz").status, 200);
}

TEST(ServeHostile, WhatIsNoHttpIsRefused) {
  Served served;
  const auto status = [&](const std::string& text) {
    Connection connection(served.server.port());
    connection.send(text);
    return connection.read().status;
  };
  EXPECT_EQ(status("hello\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/9.9\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /v1/model HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n"), 400);
  EXPECT_EQ(status("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n"),
            400);
  EXPECT_EQ(status("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
                   "Content-Length: 6\r\n\r\n"),
            400);
  using namespace std::string_literals;  // which may hold zeros
  EXPECT_EQ(status("GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n"s), 400);
  EXPECT_EQ(status("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n"s), 400);
  EXPECT_EQ(
      status("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20000, 'x') + "\r\n\r\n"),
      431);
  EXPECT_EQ(status("GET /" + std::string(20000, 'x') + " HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            431);
  EXPECT_EQ(served.get("/healthz").status, 200);
}

TEST(ServeHostile, RandomBytesDoNotEndIt) {
  Served served;
  std::mt19937 random(5);
  const std::string whole = request_text("POST", "/v1/score", R"({"rows": [[1, 2], [3, 4]]})");
  for (int i = 0; i < 200; ++i) {
    std::string text = i % 2 == 0 ? whole : std::string(random() % 300, ' ');
    for (char& c : text) {
      if (i % 2 != 0 || random() % 20 == 0) c = static_cast<char>(random());
    }
    Connection(served.server.port()).send(text);
  }
  EXPECT_EQ(served.get("/healthz").status, 200);
}

TEST(ServeHostile, PathsAreThoseThatAreListed) {
  Served served;
  for (const char* path : {"/../etc/passwd", "/..%2f..%2fetc/passwd", "/v1/../v1/model",
                           "//v1/model", "/v1/model/", "/v1/%6dodel", "/V1/model", "/v1",
                           "/config.toml", "/metrics.jsonl", "http://localhost/v1/model",
                           "/v1/model;x", "/v1/model%00", "*", "/v1/model#x", "/\\..\\..\\etc"}) {
    const Reply reply = served.get(path);
    EXPECT_TRUE(reply.status == 404 || reply.status == 400) << path << " " << reply.status;
  }
  EXPECT_EQ(served.get("/v1/model?x=1").status, 200);
  EXPECT_EQ(ask(served.server.port(), "DELETE", "/v1/model").status, 405);
  EXPECT_EQ(served.get("/v1/score").headers.at("Allow"), "POST");
  EXPECT_EQ(ask(served.server.port(), "GET", "/v1/model", "", "Content-Length: 3\r\n").status, 400);
}

TEST(ServeHostile, OtherSitesPagesAreNotAnswered) {
  Served served;
  const auto status = [&](const std::string& headers) {
    Connection connection(served.server.port());
    connection.send("GET /v1/model HTTP/1.1\r\n" + headers + "\r\n");
    return connection.read().status;
  };
  EXPECT_EQ(status("Host: localhost:8080\r\n"), 200);
  EXPECT_EQ(status("Host: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080\r\n"), 200);
  EXPECT_EQ(status("Host: [::1]:8080\r\n"), 200);
  // A name of theirs that leads here, and a page of theirs.
  EXPECT_EQ(status("Host: evil.example\r\n"), 403);
  EXPECT_EQ(status("Host: 127.0.0.1.evil.example\r\n"), 403);
  EXPECT_EQ(status("Host: localhost:8080\r\nOrigin: http://evil.example\r\n"), 403);
  EXPECT_EQ(status("Host: localhost:8080\r\nOrigin: null\r\n"), 403);
}

TEST(ServeHostile, ATokenIsAskedForWhereThereIsOne) {
  Served served([](ServiceOptions& options, HttpOptions&) { options.token = "correct horse"; });
  const auto status = [&](const std::string& path, const std::string& headers) {
    return ask(served.server.port(), "GET", path, "", headers).status;
  };
  for (const char* path : {"/v1/model", "/metrics", "/v1/openapi.json", "/nothing"}) {
    EXPECT_EQ(status(path, ""), 401) << path;
  }
  for (const char* wrong :
       {"Bearer ", "Bearer correct", "Bearer correct horses", "Bearer Correct horse",
        "Basic correct horse", "correct horse", "Bearer  correct horse"}) {
    EXPECT_EQ(status("/v1/model", std::string("Authorization: ") + wrong + "\r\n"), 401) << wrong;
  }
  EXPECT_EQ(status("/v1/model", "Authorization: Bearer correct horse\r\n"), 200);
  EXPECT_EQ(status("/", ""), 200);
  EXPECT_EQ(status("/healthz", ""), 200);
  // Who has none cannot make it read a body.
  Connection connection(served.server.port());
  connection.send("POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n");
  EXPECT_EQ(connection.read().status, 401);
}

TEST(ServeHostile, OverloadIsAnsweredAtOnce) {
  Served small([](ServiceOptions& options, HttpOptions&) { options.limits.numbers = 4; });
  EXPECT_EQ(small.post("/v1/score", R"({"rows": [[1, 2], [3, 4]]})").status, 200);
  const Reply refused = small.post("/v1/score", R"({"rows": [[1, 2], [3, 4], [5, 6]]})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("Retry-After"), "1");
  Served narrow([](ServiceOptions&, HttpOptions& http) { http.connections = 2; });
  Connection one(narrow.server.port());
  one.send(request_text("GET", "/healthz"));
  EXPECT_EQ(one.read().status, 200);
  Connection two(narrow.server.port());
  two.send(request_text("GET", "/healthz"));
  EXPECT_EQ(two.read().status, 200);
  EXPECT_EQ(narrow.get("/healthz").status, 429);
}

// ---- HTTP as it should be

TEST(Serve, ConnectionsAreKeptAndRequestsMayFollowAtOnce) {
  Served served;
  Connection connection(served.server.port());
  const std::string body = R"({"rows": [[1, 2]]})";
  connection.send(request_text("POST", "/v1/score", body) + request_text("GET", "/healthz") +
                  request_text("HEAD", "/v1/model"));
  const Reply scored = connection.read();
  EXPECT_EQ(scored.status, 200);
  EXPECT_NE(scored.body.find("log_density"), std::string::npos);
  EXPECT_EQ(connection.read().body, "{\"status\":\"ok\"}\n");
  const Reply head = connection.read(/*head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoul(head.headers.at("Content-Length")), 100U);
  connection.send(request_text("GET", "/healthz", "", "Connection: close\r\n"));
  EXPECT_EQ(connection.read().status, 200);
  EXPECT_TRUE(connection.ended());
  // curl asks before it sends much.
  Connection polite(served.server.port());
  polite.send(
      "POST /v1/score HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "18\r\n\r\n");
  std::this_thread::sleep_for(milliseconds(20));
  polite.send(body);
  const Reply go_on = polite.read(/*head=*/true);
  EXPECT_EQ(go_on.status, 100);
  EXPECT_EQ(polite.read().status, 200);
}

TEST(Serve, EveryAnswerIsGuarded) {
  Served served;
  for (const char* path : {"/", "/v1/model", "/nothing"}) {
    auto reply = served.get(path);
    EXPECT_EQ(reply.headers["X-Content-Type-Options"], "nosniff");
    EXPECT_EQ(reply.headers["Referrer-Policy"], "no-referrer");
    const auto policy = reply.headers["Content-Security-Policy"];
    EXPECT_EQ(policy.rfind("default-src 'none'; script-src 'sha256-", 0), 0U) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
    EXPECT_EQ(reply.headers.count("Access-Control-Allow-Origin"), 0U);
  }
}

TEST(Serve, ThePageNeedsNothingElse) {
  Served served;
  const Reply page = served.get("/");
  EXPECT_EQ(page.headers.at("Content-Type"), "text/html; charset=utf-8");
  EXPECT_LT(page.body.size(), 100000U);
  const std::regex outside(R"((src|href)\s*=\s*["']?(https?:)?//|url\(|@import|import\s*\()");
  EXPECT_FALSE(std::regex_search(page.body, outside));
  EXPECT_EQ(page.body.find("innerHTML"), std::string::npos) << "text from elsewhere stays text";
}

TEST(Serve, CountersAreInPrometheusFormat) {
  Served served;
  served.post("/v1/score", R"({"rows": [[1, 2], [3, 4]]})");
  served.get("/nothing");
  const Reply reply = served.get("/metrics");
  EXPECT_EQ(reply.headers.at("Content-Type"), "text/plain; version=0.0.4");
  std::istringstream lines(reply.body);
  const std::regex sample(R"([a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)");
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.rfind("# HELP ", 0) == 0 || line.rfind("# TYPE ", 0) == 0 ||
                std::regex_match(line, sample))
        << line;
  }
  for (const char* expected :
       {"ddaebm_answers_total{status=\"200\"} 1\n", "ddaebm_answers_total{status=\"404\"} 1\n",
        "ddaebm_scored_rows_total 2\n", "ddaebm_batches_total 1\n", "ddaebm_iteration 8\n",
        "ddaebm_request_seconds_bucket{path=\"/v1/score\",le=\"+Inf\"} 1\n",
        "ddaebm_request_seconds_count{path=\"/v1/score\"} 1\n"}) {
    EXPECT_NE(reply.body.find(expected), std::string::npos) << expected << reply.body;
  }
}

// ---- the description of itself

// What of a value the schema does not allow; nothing where all is well.
std::string misfit(const Json& value, Json schema, const Json& api, const std::string& where) {
  if (schema.contains("$ref")) {
    schema = api.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
  }
  if (value.is_null()) return schema.value("nullable", false) ? "" : where + " is null";
  const auto type = schema.value("type", "");
  const bool fits =
      (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
      (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
      (type == "integer" && value.is_number_integer()) || (type == "boolean" && value.is_boolean());
  if (!fits) return where + " is no " + type;
  if (schema.contains("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
    return where + " has a value that is not listed";
  }
  for (const auto& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>()))
      return where + " lacks " + name.get<std::string>();
  }
  if (value.is_object()) {
    for (const auto& [name, inner] : value.items()) {
      Json of;
      if (schema.contains("properties") && schema["properties"].contains(name)) {
        of = schema["properties"][name];
      } else if (schema.contains("additionalProperties") &&
                 schema["additionalProperties"].is_object()) {
        of = schema["additionalProperties"];
      } else if (schema.contains("properties")) {
        return where + " has " + name + ", which is not described";
      } else {
        continue;
      }
      if (auto found = misfit(inner, of, api, where + "." + name); !found.empty()) return found;
    }
  }
  if (value.is_array() && schema.contains("items")) {
    for (const auto& inner : value) {
      if (auto found = misfit(inner, schema["items"], api, where + "[]"); !found.empty())
        return found;
    }
  }
  return "";
}

// Checks an answer against what the description says of that path, method and status.
void expect_described(const Json& api, const std::string& method, const std::string& path,
                      const Reply& reply) {
  SCOPED_TRACE(method + " " + path + " " + std::to_string(reply.status));
  const auto& operation = api.at("paths").at(path).at(method);
  ASSERT_TRUE(operation["responses"].contains(std::to_string(reply.status)));
  Json response = operation["responses"][std::to_string(reply.status)];
  if (response.contains("$ref")) {
    response = api.at(Json::json_pointer(response["$ref"].get<std::string>().substr(1)));
  }
  std::string type = reply.headers.at("Content-Type");
  type = type.substr(0, type.find(';'));
  ASSERT_TRUE(response["content"].contains(type)) << type;
  if (type == "application/json") {
    EXPECT_EQ(misfit(Json::parse(reply.body), response["content"][type]["schema"], api, "answer"),
              "");
  }
}

TEST(ServeOpenApi, IsTrueOfEveryPathAndField) {
  Served served([](ServiceOptions& options, HttpOptions&) { options.limits.numbers = 4000; });
  const Json api = Json::parse(served.get("/v1/openapi.json").body);
  EXPECT_EQ(api["openapi"], "3.0.3");
  std::vector<std::string> described;
  for (const auto& [path, methods] : api["paths"].items()) {
    described.push_back(path);
    ASSERT_EQ(methods.size(), 1U) << path;
    const std::string method = methods.begin().key();
    if (method == "get") expect_described(api, method, path, served.get(path));
    // The other one is none.
    EXPECT_EQ(ask(served.server.port(), method == "get" ? "POST" : "GET", path).status, 405)
        << path;
  }
  EXPECT_EQ(described, Service::paths());

  const std::string rows = R"({"rows": [[1, 2], [1e30, -1e30]]})";
  EXPECT_EQ(misfit(Json::parse(rows), api["components"]["schemas"]["Rows"], api, "request"), "");
  expect_described(api, "post", "/v1/score", served.post("/v1/score", rows));
  expect_described(api, "post", "/v1/score", served.post("/v1/score", "{"));
  expect_described(api, "post", "/v1/score",
                   served.post("/v1/score", format_npy("", torch::zeros({2001, 2}))));
  expect_described(api, "post", "/v1/score", served.post("/v1/score", std::string(9 << 20, ' ')));
  // Every key of a request for samples is taken, and each of its formats.
  const auto& wanted = api["components"]["schemas"]["SampleRequest"]["properties"];
  EXPECT_EQ(wanted.size(), 4U);
  for (const char* request : {"", R"({"n": 2, "seed": 1, "format": "json", "path": true})",
                              R"({"n": 2, "format": "npy"})", R"({"n": 0})"}) {
    expect_described(api, "post", "/v1/sample", served.post("/v1/sample", request));
  }
  EXPECT_EQ(served.post("/v1/sample", R"({"n": 10000})").status, 200);

  Served guarded([](ServiceOptions& options, HttpOptions&) { options.token = "t"; });
  for (const auto& [path, methods] : api["paths"].items()) {
    const std::string method = methods.begin().key();
    const bool open = methods[method].contains("security");
    const Reply reply = ask(guarded.server.port(), method == "get" ? "GET" : "POST", path, "{}");
    EXPECT_EQ(reply.status == 401, !open) << path;
    if (!open) expect_described(api, method, path, reply);
  }
}

// ---- a run that is being trained

TEST(Serve, FollowsTheNewestCheckpoint) {
  const TempDir folder;
  const fs::path run = folder.path() / "run";
  fs::create_directory(run);
  fs::copy(trained_run() / "config.toml", run / "config.toml");
  Served served({}, run);
  const Json api = Json::parse(served.get("/v1/openapi.json").body);
  const std::string row = R"({"rows": [[1, 2]]})";
  expect_described(api, "get", "/healthz", served.get("/healthz"));
  expect_described(api, "get", "/v1/model", served.get("/v1/model"));
  expect_described(api, "get", "/v1/landscape", served.get("/v1/landscape"));
  expect_described(api, "post", "/v1/sample", served.post("/v1/sample", "{}"));
  EXPECT_EQ(served.post("/v1/score", row).status, 503);
  EXPECT_TRUE(Json::parse(served.get("/v1/model").body)["model"].is_null());

  const auto answers = [&](int64_t iteration) {
    for (int i = 0; i < 200; ++i) {
      const auto told = Json::parse(served.get("/v1/model").body)["model"];
      if (told.is_object() && told["iteration"] == iteration) {
        return Json::parse(served.post("/v1/score", row).body)["iteration"] == iteration;
      }
      std::this_thread::sleep_for(milliseconds(50));
    }
    return false;
  };
  const auto add = [&](const fs::path& file) {
    fs::copy(trained_run() / file, run / "new");
    fs::rename(run / "new", run / file);
  };
  add(RunFolder{""}.checkpoint(4).filename());
  EXPECT_TRUE(answers(4));
  add("metrics.jsonl");
  add(RunFolder{""}.checkpoint(8).filename());
  EXPECT_TRUE(answers(8));
  // One that cannot be read leaves the old one in place.
  write_file(RunFolder{run}.checkpoint(12), "x");
  std::this_thread::sleep_for(milliseconds(700));
  EXPECT_EQ(served.post("/v1/score", row).status, 200);
  const auto curves = Json::parse(served.get("/v1/curves").body)["series"];
  EXPECT_EQ(curves["energy"].size(), 4U);
  EXPECT_EQ(curves["energy"][3][0], 8);
  EXPECT_EQ(Json::parse(served.get("/v1/model").body)["state"], "finished");
}

// ---- as a user meets it

uint16_t port_of(App& app, const fs::path& out) {
  for (int i = 0; i < 400 && !app.ended(); ++i) {
    const std::string text = fs::exists(out) ? read_file(out) : "";
    const size_t colon = text.find(":", text.find("http://") + 7);
    if (text.find("http://") != std::string::npos && text.back() == '\n') {
      return static_cast<uint16_t>(std::stoi(text.substr(colon + 1)));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return 0;
}

TEST(ServeCommand, AnswersWhatIsUnderWayAndEnds) {
  for (const int signal : {SIGTERM, SIGINT}) {
    App app({"serve", trained_run().string(), "--port", "0", "--calibration", "100"});
    const uint16_t port = port_of(app, app.out_file());
    ASSERT_NE(port, 0);
    Connection idle(port);
    idle.send(request_text("GET", "/healthz"));
    EXPECT_EQ(idle.read().status, 200);
    Connection under_way(port);
    const std::string text = request_text("POST", "/v1/score", R"({"rows": [[1, 2]]})");
    under_way.send(text.substr(0, text.size() - 1));
    std::this_thread::sleep_for(milliseconds(100));
    app.signal(signal);
    EXPECT_TRUE(idle.ended());
    EXPECT_FALSE(app.ended());
    under_way.send("}");
    const Reply reply = under_way.read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("Connection"), "close");
    const auto result = app.wait();
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.err, "");
  }
}

TEST(ServeCommand, SaysWhatIsWrong) {
  const auto error = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> all = {"serve", trained_run().string(), "--calibration", "100"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto result = run_app(all);
    EXPECT_EQ(result.code, 2);
    return result.err;
  };
  EXPECT_NE(error({"--address", "0.0.0.0"}).find("--token-file"), std::string::npos);
  EXPECT_NE(error({"--address", "nowhere"}).find("--token-file"), std::string::npos);
  EXPECT_NE(error({"--token-file", "/none"}).find("/none"), std::string::npos);
  EXPECT_NE(error({"--port", "99999"}).find("--port"), std::string::npos);
  EXPECT_EQ(run_app({"serve", "/nothing/here"}).code, 2);
  Served served;
  const std::string taken = std::to_string(served.server.port());
  EXPECT_NE(error({"--port", taken}).find("--port"), std::string::npos);
}

}  // namespace
}  // namespace ddaebm::serve
