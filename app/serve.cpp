#include <cstdlib>
#include <memory>
#include <thread>

#include "app/commands.h"
#include "app/stop.h"
#include <unistd.h>

#include <fmt/format.h>

#include "ddaebm/error.h"
#include "ddaebm/io/file.h"
#include "ddaebm/serve/admission.h"
#include "ddaebm/serve/service.h"

namespace ddaebm::app {
namespace {

struct Options {
  std::string run, device = "cpu", token_file;
  serve::HttpOptions http;
  serve::WorkerLimits limits;
  double timeout = 30, body = 8;
  int64_t calibration = 0;
};

// Of the file, else of the environment; never of the command line, which others can see.
std::string read_token(const std::string& file) {
  std::string token;
  if (!file.empty()) {
    token = read_file(file);
  } else if (const char* given = std::getenv("DDAEBM_TOKEN"); given != nullptr) {
    token = given;
  }
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  if (!file.empty() && token.empty()) fail("{}: no token in it", file);
  return token;
}

void run(Options o) {
  const std::string token = read_token(o.token_file);
  if (token.empty() && !serve::is_local(o.http.address)) {
    fail(
        "--address {} is reached from other machines, which needs a token: write one into a file "
        "and give --token-file, or set DDAEBM_TOKEN",
        o.http.address);
  }
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout * 1000));
  o.http.timeout = o.limits.timeout = timeout;
  o.http.body = static_cast<uint64_t>(o.body * (1 << 20));
  stop_on_signals();
  serve::Service service(
      {o.run, parse_device(o.device), o.limits, token, o.calibration, DDAEBM_VERSION,
       [](const std::string& warning) { fmt::print(stderr, "ddaebm: warning: {}\n", warning); }});
  {
    const serve::HttpServer server(o.http, service);
    const bool v6 = o.http.address.find(':') != std::string::npos;
    fmt::print("{} at http://{}{}{}:{}/\n", o.run, v6 ? "[" : "", o.http.address, v6 ? "]" : "",
               server.port());
    std::fflush(stdout);
    while (stop_signal == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fmt::print("stopping: what is under way is answered first\n");
    std::fflush(stdout);
  }
}

}  // namespace

void add_serve(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("serve", "Score and sample over HTTP, with a live page of the run");
  command->add_option("RUN", o->run, "Run folder; one that is being trained is followed")
      ->required();
  o->http.port = 8080;
  command->add_option("--port", o->http.port, "0: any that is free")->capture_default_str();
  command->add_option("--address", o->http.address, "Where to listen; 0.0.0.0: everywhere")
      ->capture_default_str();
  command->add_option("--token-file", o->token_file,
                      "File of the token that requests must bear; else $DDAEBM_TOKEN");
  command
      ->add_option("--batch", o->limits.batch,
                   "Rows of waiting requests scored at once; 1: each request by itself")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--queue", o->limits.queue, "Requests that may wait; more are answered 429")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--connections", o->http.connections, "Open at once; more are answered 429")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--body", o->body, "MiB of a request, at most")
      ->check(CLI::Range(0.001, 1024.0))
      ->capture_default_str();
  command->add_option("--timeout", o->timeout, "Seconds for a request to arrive, and to wait")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command
      ->add_option("--calibration", o->calibration,
                   "Training data to score for p-values; 0: 10000 rows, 1000 images")
      ->check(CLI::Range(int64_t{0}, int64_t{10000000}))
      ->capture_default_str();
  command->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->footer(
      "POST /v1/score takes JSON rows, .npy arrays, PNG and JPEG images; POST /v1/sample draws;\n"
      "/v1/openapi.json describes all; / is the live page; docs/serve.md says more.\n"
      "Examples:\n"
      "  ddaebm serve runs/25gaussians\n"
      "  curl -d '{\"rows\": [[0.5, -1.5]]}' localhost:8080/v1/score\n"
      "  ddaebm serve runs/cifar10 --device cuda --address 0.0.0.0 --token-file token");
  command->callback([o] { run(*o); });
}

}  // namespace ddaebm::app
