#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ddaebm {

struct Reply {
  int status = 0;  // 0: the server hung up without a word
  std::map<std::string, std::string> headers;
  std::string body;
};

// A connection to a server on this machine that sends what it is told, sense or not.
class Connection {
 public:
  explicit Connection(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      ::close(socket_);
      throw std::runtime_error("cannot connect");
    }
    const timeval patience{20, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
  ~Connection() { ::close(socket_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Whether the server took all of it.
  bool send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }

  // Says that nothing more will be sent, and reads to the end.
  std::string finish() {
    ::shutdown(socket_, SHUT_WR);
    while (more()) {
    }
    return std::exchange(got_, {});
  }

  // The next answer; one to HEAD has no body.
  Reply read(bool head = false) {
    Reply reply;
    size_t end = 0;
    while ((end = got_.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return reply;
    }
    reply.status = std::stoi(got_.substr(got_.find(' ') + 1, 3));
    for (size_t at = got_.find("\r\n") + 2; at < end;) {
      const size_t line_end = got_.find("\r\n", at);
      const size_t colon = got_.find(": ", at);
      reply.headers[got_.substr(at, colon - at)] = got_.substr(colon + 2, line_end - colon - 2);
      at = line_end + 2;
    }
    got_.erase(0, end + 4);
    const size_t length = head ? 0 : std::stoul(reply.headers["Content-Length"]);
    while (got_.size() < length && more()) {
    }
    reply.body = got_.substr(0, length);
    got_.erase(0, length);
    return reply;
  }
  // Whether the server hung up, having said nothing more.
  bool ended() { return got_.empty() && !more(); }

 private:
  bool more() {
    char part[65536];
    const ssize_t n = ::recv(socket_, part, sizeof part, 0);
    if (n > 0) got_.append(part, static_cast<size_t>(n));
    return n > 0;
  }

  int socket_;
  std::string got_;
};

inline std::string request_text(const std::string& method, const std::string& target,
                                const std::string& body = "", const std::string& headers = "") {
  std::string text = method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
  if (method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return text + "\r\n" + body;
}

inline Reply ask(uint16_t port, const std::string& method, const std::string& target,
                 const std::string& body = "", const std::string& headers = "") {
  Connection connection(port);
  connection.send(request_text(method, target, body, headers));
  return connection.read();
}

}  // namespace ddaebm
