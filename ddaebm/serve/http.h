#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// HTTP/1.1 as a service meets it: requests that are whole and within limits, answers from any
// thread.
namespace ddaebm::serve {

struct Request {
  std::string method, path, query;  // "GET", "/v1/model", "a=b"
  std::string host, origin, authorization, content_type;
  uint64_t content_length = 0;
  std::string body;
};

struct Response {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Answers a request; to be called once, from any thread.
using Respond = std::function<void(Response)>;

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;             // 0: any that is free
  uint64_t body = 8 << 20;       // bytes of a request's body, at most
  uint64_t bodies = 256U << 20;  // of all that arrive at one time
  int connections = 512;
  std::chrono::milliseconds timeout{30000};  // for a request to arrive, and for an answer to leave
  int threads = 2;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Sees a request before its body is read; an answer refuses it.
  virtual std::optional<Response> refuse(const Request& request) = 0;
  // Gets every request that was not refused. What it throws is answered with 500.
  virtual void handle(Request request, Respond respond) = 0;
  // Sees every answer's status, also of requests that are no HTTP.
  virtual void answered(int status) = 0;
  // Headers that every answer has.
  virtual const std::vector<std::pair<std::string, std::string>>& headers() const = 0;
};

// The answer that says what is wrong: {"error": "..."}.
Response error_response(int status, const std::string& message);

class HttpServer {
 public:
  // Listens from now on, on threads of its own. An Error where it cannot.
  HttpServer(const HttpOptions& options, HttpHandler& handler);
  // Takes no more connections, answers what has begun to arrive, then ends.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace ddaebm::serve
