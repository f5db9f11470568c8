#include "ddaebm/serve/http.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include <fmt/format.h>

#include "ddaebm/error.h"

namespace ddaebm::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using Failure = beast::error_code;

constexpr int kHttp11 = 11;
constexpr std::chrono::milliseconds kLinger{2000};
constexpr size_t kDrained = 65536;  // bytes at a time
constexpr size_t kTurnedAway = 64;  // connections beyond the limit that hear why

// What the connections of a server share.
struct Shared {
  const HttpOptions& options;
  HttpHandler& handler;
  std::atomic<uint64_t> bodies = 0;  // bytes that are arriving
  std::atomic<bool> stopping = false;
};

// One connection: reads a request, has it answered, and again. Everything happens on its strand.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared& shared, std::function<void(Session*)> ended)
      : stream_(std::move(socket)), shared_(shared), ended_(std::move(ended)) {}
  ~Session() {
    release_body();
    ended_(this);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->read_header(); });
  }

  // Answers at once whatever is asked.
  void turn_away(Response response) {
    asio::post(stream_.get_executor(),
               [self = shared_from_this(), response = std::move(response)]() mutable {
                 self->keep_ = false;
                 self->write(std::move(response));
               });
  }

  // Ends the connection unless a request is under way on it.
  void close_if_idle() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] {
      if (!self->busy_) self->stream_.close();
    });
  }

 private:
  void read_header() {
    busy_ = false;
    if (shared_.stopping) return;
    parser_.emplace();
    parser_->body_limit(shared_.options.body);
    // One time for the whole header: a client that sends a byte now and then gains nothing.
    stream_.expires_after(shared_.options.timeout);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](Failure failure, size_t) { self->got_header(failure); });
  }

  void got_header(Failure failure) {
    if (failure == http::error::end_of_stream) return finish();
    if (failure) return refuse_broken(failure);
    busy_ = true;
    const auto& message = parser_->get();
    keep_ = message.keep_alive();
    head_ = message.method() == http::verb::head;
    const auto field = [&](http::field name) { return std::string(message[name]); };
    const std::string target(message.target());
    const size_t question = target.find('?');
    request_ = {std::string(message.method_string()),
                target.substr(0, question),
                question == std::string::npos ? "" : target.substr(question + 1),
                field(http::field::host),
                field(http::field::origin),
                field(http::field::authorization),
                field(http::field::content_type),
                parser_->content_length().value_or(0),
                ""};
    if (head_) request_.method = "GET";
    if (auto refusal = refusal_of(message)) {
      keep_ = keep_ && parser_->is_done();  // what follows would be its body
      return write(std::move(*refusal));
    }
    if (parser_->is_done()) return handle();
    if (beast::iequals(message[http::field::expect], "100-continue")) {
      continue_.version(kHttp11);
      continue_.result(http::status::continue_);
      return http::async_write(stream_, continue_,
                               [self = shared_from_this()](Failure broken, size_t) {
                                 if (!broken) self->read_body();
                               });
    }
    read_body();
  }

  std::optional<Response> refusal_of(const http::request<http::string_body>& message) {
    if (message.version() != kHttp11 && message.version() != 10) {
      return error_response(505, "HTTP/1.1 is spoken here");
    }
    // A length that is known beforehand keeps the memory bounded.
    if (message.chunked()) return error_response(411, "send Content-Length, not chunks");
    if (auto refusal = shared_.handler.refuse(request_)) return refusal;
    if (request_.content_length > shared_.options.body) return too_large();
    body_ = request_.content_length;
    if (shared_.bodies.fetch_add(body_) + body_ > shared_.options.bodies) {
      release_body();
      return busy();
    }
    return {};
  }

  void read_body() {
    stream_.expires_after(shared_.options.timeout);
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](Failure failure, size_t) {
                       if (failure) return self->refuse_broken(failure);
                       self->handle();
                     });
  }

  void handle() {
    request_.body = std::move(parser_->get().body());
    stream_.expires_never();
    const Respond respond = [self = shared_from_this()](Response response) {
      asio::post(self->stream_.get_executor(), [self, response = std::move(response)]() mutable {
        self->write(std::move(response));
      });
    };
    try {
      shared_.handler.handle(std::move(request_), respond);
    } catch (const std::exception&) {
      write(error_response(500, "a bug, or no memory left"));
    }
  }

  void write(Response response) {
    release_body();
    shared_.handler.answered(response.status);
    response_ = {};
    response_.version(kHttp11);
    response_.result(static_cast<unsigned>(response.status));
    response_.set(http::field::content_type, response.type);
    for (const auto& [name, value] : shared_.handler.headers()) response_.set(name, value);
    for (const auto& [name, value] : response.headers) response_.set(name, value);
    keep_ = keep_ && !shared_.stopping;
    response_.keep_alive(keep_);
    response_.content_length(response.body.size());
    if (!head_) response_.body() = std::move(response.body);
    stream_.expires_after(shared_.options.timeout);
    http::async_write(stream_, response_, [self = shared_from_this()](Failure failure, size_t) {
      if (failure) return;
      if (self->keep_) return self->read_header();
      self->finish();
    });
  }

  void refuse_broken(Failure failure) {
    keep_ = false;
    if (failure == http::error::body_limit) return write(too_large());
    if (failure == http::error::header_limit) {
      return write(error_response(431, "the request's headers are too long"));
    }
    const bool is_http_error = failure.category() == make_error_code(http::error{}).category();
    // Who hangs up or is too slow hears nothing.
    if (!is_http_error || failure == http::error::partial_message) return;
    write(error_response(400, fmt::format("not HTTP: {}", failure.message())));
  }

  // Takes in for a while what the client still sends: else the system would drop the answer with
  // the connection.
  void finish() {
    Failure ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    busy_ = false;
    stream_.expires_after(std::min<std::chrono::milliseconds>(shared_.options.timeout, kLinger));
    drain();
  }
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kDrained),
                            [self = shared_from_this()](Failure failure, size_t) {
                              if (!failure) self->drain();
                            });
  }

  void release_body() { shared_.bodies -= std::exchange(body_, 0); }

  Response too_large() const {
    return error_response(
        413, fmt::format("a body of {} bytes at most is read; send less at a time, or start the "
                         "server with a larger --body",
                         shared_.options.body));
  }
  static Response busy() {
    Response response = error_response(429, "too many requests at once; try again soon");
    response.headers.emplace_back("Retry-After", "1");
    return response;
  }

  beast::tcp_stream stream_;
  Shared& shared_;
  std::function<void(Session*)> ended_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  http::response<http::empty_body> continue_;
  Request request_;
  uint64_t body_ = 0;
  bool busy_ = false, keep_ = false, head_ = false;
};

}  // namespace

class HttpServer::Implementation {
 public:
  Implementation(const HttpOptions& options, HttpHandler& handler)
      : options_(options),
        shared_{options_, handler},
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()) {
    Failure failure;
    const auto address = asio::ip::make_address(options.address, failure);
    if (failure) {
      fail("--address {}: expected an IP address such as 127.0.0.1, 0.0.0.0 or ::",
           options.address);
    }
    const tcp::endpoint endpoint(address, options.port);
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) acceptor_.set_option(asio::socket_base::reuse_address(true), failure);
    if (!failure) acceptor_.bind(endpoint, failure);
    if (!failure) acceptor_.listen(asio::socket_base::max_listen_connections, failure);
    if (failure) {
      fail("{} port {}: {}; choose another --address or --port", options.address, options.port,
           failure.message());
    }
    port_ = acceptor_.local_endpoint().port();
    accept();
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  ~Implementation() {
    shared_.stopping = true;
    asio::post(acceptor_.get_executor(), [this] {
      Failure ignored;
      acceptor_.close(ignored);
      pause_.cancel();
    });
    std::vector<std::shared_ptr<Session>> there;
    {
      const std::lock_guard lock(mutex_);
      for (Session* session : sessions_) {
        // Nothing where it is just ending.
        if (auto kept = session->weak_from_this().lock()) there.push_back(std::move(kept));
      }
    }
    for (const auto& session : there) session->close_if_idle();
    there.clear();  // without the lock, which a session takes when it ends
    {
      std::unique_lock lock(mutex_);
      // What is under way is bounded in time: reading and writing by the timeout, the rest by the
      // handler.
      none_left_.wait(lock, [&] { return sessions_.empty(); });
    }
    io_.stop();
    for (auto& thread : threads_) thread.join();
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  uint16_t port() const { return port_; }

 private:
  void accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](Failure failure, tcp::socket socket) {
      if (shared_.stopping) return;
      if (failure) {  // no file descriptors left, say: wait for some
        pause_.expires_after(std::chrono::milliseconds(100));
        return pause_.async_wait([this](Failure) {
          if (!shared_.stopping) accept();
        });
      }
      add(std::move(socket));
      accept();
    });
  }

  void add(tcp::socket socket) {
    Failure ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const auto most = static_cast<size_t>(options_.connections);
    size_t others = 0;
    {
      const std::lock_guard lock(mutex_);
      others = sessions_.size();
    }
    if (others >= most + kTurnedAway) return;  // too many even to be told so
    const auto session = std::make_shared<Session>(std::move(socket), shared_, [this](Session* s) {
      const std::lock_guard lock(mutex_);
      sessions_.erase(s);
      if (sessions_.empty()) none_left_.notify_all();
    });
    {
      const std::lock_guard lock(mutex_);
      sessions_.insert(session.get());
    }
    if (others < most) return session->start();
    Response response = error_response(429, "too many connections; try again soon");
    response.headers.emplace_back("Retry-After", "1");
    session->turn_away(std::move(response));
  }

  const HttpOptions options_;
  std::mutex mutex_;  // guards sessions_
  std::condition_variable none_left_;
  std::set<Session*> sessions_;
  Shared shared_;
  asio::io_context io_;
  // Threads stay while a request is with the handler and nothing else is to be done.
  asio::executor_work_guard<asio::io_context::executor_type> staying_ = asio::make_work_guard(io_);
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  uint16_t port_ = 0;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(const HttpOptions& options, HttpHandler& handler)
    : implementation_(std::make_unique<Implementation>(options, handler)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return implementation_->port(); }

}  // namespace ddaebm::serve
