// Fetching sets, against a server of our own that misbehaves as asked.

#include "ddaebm/data/download.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "image_fixtures.h"
#include "run_app.h"
#include "temp_dir.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

// HTTP/1.1 on this machine, one request a connection.
class Server {
 public:
  struct Page {
    std::string body;
    bool ranges = true;  // else Range is ignored
    int cuts = 0;        // so many answers end in the middle
    int status = 200;
    int failures = 0;  // so many answers are 503
  };

  Server() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(socket_, 16) != 0) {
      throw std::runtime_error("cannot listen");
    }
    socklen_t size = sizeof address;
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    stop_ = true;
    thread_.join();
    ::close(socket_);
  }

  std::string url(const std::string& name = "") const {
    return "http://127.0.0.1:" + std::to_string(port_) + "/" + name;
  }
  // Before the first request; put() may come later.
  Page& operator[](const std::string& name) { return pages_["/" + name]; }
  void put(const std::string& name, const Page& page) {
    const std::lock_guard lock(mutex_);
    pages_["/" + name] = page;
  }
  // "GET /name" or "GET /name from 100", in order.
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd waiting{socket_, POLLIN, 0};
      if (::poll(&waiting, 1, 20) <= 0) continue;
      const int client = ::accept(socket_, nullptr, nullptr);
      if (client < 0) continue;
      answer(client);
      ::close(client);
    }
  }

  void answer(int client) {
    std::string request;
    char buffer[4096];
    while (request.find("\r\n\r\n") == std::string::npos) {
      const auto got = ::recv(client, buffer, sizeof buffer, 0);
      if (got <= 0) return;
      request.append(buffer, static_cast<size_t>(got));
    }
    const std::string name = request.substr(4, request.find(' ', 4) - 4);
    size_t from = 0;
    if (const size_t at = request.find("Range: bytes="); at != std::string::npos) {
      from = std::stoul(request.substr(at + 13));
    }
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back("GET " + name + (from > 0 ? " from " + std::to_string(from) : ""));
    }
    const auto send = [&](const std::string& bytes) {
      ::send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    };
    const auto head = [&](const std::string& status, size_t length, const std::string& more = "") {
      send("HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(length) +
           "\r\nConnection: close\r\n" + more + "\r\n");
    };
    const auto found = pages_.find(name);
    if (found == pages_.end()) return head("404 Not Found", 0);
    Page& page = found->second;
    if (page.failures > 0) {
      --page.failures;
      return head("503 Service Unavailable", 0);
    }
    if (page.status != 200) return head(std::to_string(page.status) + " No", 0);
    const bool partial = from > 0 && page.ranges;
    if (partial && from >= page.body.size()) return head("416 Range Not Satisfiable", 0);
    const std::string body = page.body.substr(partial ? from : 0);
    if (partial) {
      head("206 Partial Content", body.size(),
           "Content-Range: bytes " + std::to_string(from) + "-" +
               std::to_string(page.body.size() - 1) + "/" + std::to_string(page.body.size()) +
               "\r\n");
    } else {
      head("200 OK", body.size());
    }
    if (page.cuts > 0) {
      --page.cuts;
      return send(body.substr(0, body.size() / 2));
    }
    send(body);
  }

  int socket_;
  int port_ = 0;
  std::map<std::string, Page> pages_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest() {
    options_.first_wait = std::chrono::milliseconds(1);
    options_.attempts = 3;
    options_.warn = [this](const std::string& text) { warnings_.push_back(text); };
    for (int i = 0; i < 5000; ++i) content_ += std::to_string(i * 7919 % 10007);
    put_file(path("copy"), content_);
    md5_ = file_checksum(path("copy"), 32);
    size_ = static_cast<int64_t>(content_.size());
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  void fetch(int64_t bytes = 0) {
    download(server_.url("file"), path("file"), md5_, bytes, options_);
  }
  void expect_refused(const std::function<void()>& action, const std::vector<std::string>& parts) {
    try {
      action();
      FAIL() << "no error";
    } catch (const Error& error) {
      for (const auto& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << "'" << part << "' is not in: " << error.what();
      }
    }
  }

  TempDir folder_;
  Server server_;
  DownloadOptions options_;
  std::vector<std::string> warnings_;
  std::string content_, md5_;
  int64_t size_ = 0;
};

TEST_F(DownloadTest, ChecksumsAreTheKnownOnes) {
  put_file(path("abc"), "abc");
  EXPECT_EQ(file_checksum(path("abc"), 32), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(file_checksum(path("abc"), 64),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(DownloadTest, FetchesAndNamesTheFileAtTheEnd) {
  server_["file"].body = content_;
  int64_t told = 0;
  options_.progress = [&](const std::string& name, int64_t done, int64_t) {
    EXPECT_EQ(name, "file");
    EXPECT_GE(done, told);
    told = done;
  };
  fetch(size_);
  EXPECT_EQ(read_file(path("file")), content_);
  EXPECT_FALSE(fs::exists(path("file.part")));
  EXPECT_EQ(told, size_);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(DownloadTest, GoesOnWhereTheLineBroke) {
  server_["file"].body = content_;
  server_["file"].cuts = 2;
  fetch();
  EXPECT_EQ(read_file(path("file")), content_);
  EXPECT_EQ(warnings_.size(), 2U);
  const size_t half = content_.size() / 2;
  const size_t rest = half + (content_.size() - half) / 2;
  EXPECT_EQ(server_.requests(),
            (std::vector<std::string>{"GET /file", "GET /file from " + std::to_string(half),
                                      "GET /file from " + std::to_string(rest)}));
}

TEST_F(DownloadTest, GoesOnInAnotherCall) {
  server_["file"].body = content_;
  server_["file"].cuts = 1;
  options_.attempts = 1;
  expect_refused([&] { fetch(); }, {server_.url("file"), "goes on from where it was"});
  EXPECT_FALSE(fs::exists(path("file")));
  EXPECT_EQ(fs::file_size(path("file.part")), content_.size() / 2);
  fetch();
  EXPECT_EQ(read_file(path("file")), content_);
  EXPECT_EQ(server_.requests().back(), "GET /file from " + std::to_string(content_.size() / 2));
}

TEST_F(DownloadTest, StartsAnewWhereTheServerCannotGoOn) {
  server_["file"].body = content_;
  server_["file"].ranges = false;
  put_file(path("file.part"), content_.substr(0, 100));
  fetch();
  EXPECT_EQ(read_file(path("file")), content_);
}

TEST_F(DownloadTest, WholePartIsTakenAndWrongPartDropped) {
  server_["file"].body = content_;
  put_file(path("file.part"), content_);
  fetch();  // size unknown: the server says there is no more
  EXPECT_EQ(read_file(path("file")), content_);
  fs::remove(path("file"));
  put_file(path("file.part"), content_);
  const size_t before = server_.requests().size();
  fetch(size_);
  EXPECT_EQ(read_file(path("file")), content_);
  EXPECT_EQ(server_.requests().size(), before) << "nothing to ask for";
  fs::remove(path("file"));
  put_file(path("file.part"), std::string(content_.size() + 10, 'x'));
  fetch(size_);
  EXPECT_EQ(read_file(path("file")), content_);
}

TEST_F(DownloadTest, WrongChecksumIsRefusedAndRemoved) {
  server_["file"].body = content_;
  server_["file"].body[77] = 'x';
  expect_refused([&] { fetch(size_); }, {server_.url("file"), "MD5", md5_, "--url"});
  EXPECT_FALSE(fs::exists(path("file")));
  EXPECT_FALSE(fs::exists(path("file.part")));
  server_["file"].body = content_ + "more";
  expect_refused([&] { fetch(size_); }, {"more than", std::to_string(size_)});
  EXPECT_FALSE(fs::exists(path("file")));
}

TEST_F(DownloadTest, RefusalsAreFinalAndFaultsAreTriedAgain) {
  expect_refused([&] { fetch(); }, {server_.url("file"), "404", "--url"});
  EXPECT_EQ(server_.requests().size(), 1U);
  server_["file"].body = content_;
  server_["file"].failures = 2;
  fetch();
  EXPECT_EQ(server_.requests().size(), 4U);
  fs::remove(path("file"));
  server_["file"].failures = 5;
  expect_refused([&] { fetch(); }, {"503"});
  EXPECT_EQ(server_.requests().size(), 7U);
  expect_refused([&] { download("ftp://127.0.0.1/file", path("file"), md5_, 0, options_); },
                 {"ftp"});
}

TEST_F(DownloadTest, UnpacksTarAndZip) {
  const NamedFiles files = {{"set/a.bin", "first"}, {"set/deep/b.bin", std::string(100000, 'b')}};
  for (const char* name : {"a.tar", "a.tar.gz", "a.zip"}) {
    SCOPED_TRACE(name);
    write_archive(path(name), files);
    const auto to = path(std::string(name) + ".out");
    fs::create_directories(to);
    unpack_archive(path(name), to, options_);
    for (const auto& [file, bytes] : files) EXPECT_EQ(read_file(to / file), bytes);
  }
}

TEST_F(DownloadTest, ArchivesCannotWriteElsewhere) {
  const auto refuse = [&](const NamedFiles& files, const std::string& link,
                          const std::string& part) {
    write_archive(path("bad.tar"), files, link);
    fs::create_directories(path("out/in"));
    expect_refused([&] { unpack_archive(path("bad.tar"), path("out/in"), options_); },
                   {"bad.tar", part});
    EXPECT_FALSE(fs::exists(path("out/evil")));
    fs::remove_all(path("out"));
  };
  refuse({{"../evil", "x"}}, "", "outside");
  refuse({{"a/../../evil", "x"}}, "", "outside");
  refuse({{(path("out") / "evil").string(), "x"}}, "", "outside");
  refuse({{"evil", ""}}, "/etc/passwd", "link");
  put_file(path("bad.tar"), "no archive at all");
  fs::create_directories(path("out"));
  expect_refused([&] { unpack_archive(path("bad.tar"), path("out"), options_); }, {"bad.tar"});
}

// A set of one archive and one plain file.
class GetTest : public DownloadTest {
 protected:
  GetTest() {
    write_archive(path("set.tar.gz"), {{"inner/a.txt", "aaa"}});
    const auto remote = [&](const std::string& name, const std::string& bytes) {
      put_file(path("sum"), bytes);
      server_[name].body = bytes;
      return RemoteFile{name, server_.url(), file_checksum(path("sum"), 64),
                        static_cast<int64_t>(bytes.size())};
    };
    entry_.name = "toyset";
    entry_.folders = {"toyset"};
    entry_.files = {remote("set.tar.gz", read_file(path("set.tar.gz"))),
                    remote("list.txt", content_)};
    entry_.by_hand = "the shop";
  }
  ImageSetEntry entry_;
};

TEST_F(GetTest, SetAppearsWhole) {
  const auto folder = get_image_set(entry_, path("root"), "", options_);
  EXPECT_EQ(folder, path("root/toyset"));
  EXPECT_EQ(read_file(folder / "inner/a.txt"), "aaa");
  EXPECT_EQ(read_file(folder / "list.txt"), content_);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("root")), fs::directory_iterator()), 1);
  // A second call finds it.
  const size_t before = server_.requests().size();
  EXPECT_EQ(get_image_set(entry_, path("root"), "", options_), folder);
  EXPECT_EQ(server_.requests().size(), before);
}

TEST_F(GetTest, SetDoesNotAppearHalf) {
  server_["list.txt"].status = 404;
  expect_refused([&] { get_image_set(entry_, path("root"), "", options_); }, {"list.txt", "404"});
  EXPECT_FALSE(fs::exists(path("root/toyset")));
  server_["list.txt"].status = 200;
  get_image_set(entry_, path("root"), "", options_);
  EXPECT_TRUE(fs::exists(path("root/toyset/list.txt")));
  const auto requests = server_.requests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "GET /set.tar.gz"), 1) << "kept meanwhile";
}

TEST_F(GetTest, DamagedArchiveLeavesNothing) {
  entry_.files[0].checksum = "";
  entry_.files[0].bytes = 0;
  server_["set.tar.gz"].body.resize(60);
  expect_refused([&] { get_image_set(entry_, path("root"), "", options_); }, {"set.tar.gz"});
  EXPECT_FALSE(fs::exists(path("root/toyset")));
  EXPECT_FALSE(fs::exists(path("root/toyset.tmp")));
}

TEST_F(GetTest, FilesByHandAreAskedForAndTaken) {
  entry_.files[1].base = "";
  expect_refused([&] { get_image_set(entry_, path("root"), "", options_); },
                 {"list.txt", "the shop", path("root/toyset.download").string()});
  put_file(path("root/toyset.download/list.txt"), "wrong");
  expect_refused([&] { get_image_set(entry_, path("root"), "", options_); },
                 {"list.txt", "5 bytes", "remove it"});
  put_file(path("root/toyset.download/list.txt"), content_);
  get_image_set(entry_, path("root"), "", options_);
  EXPECT_EQ(read_file(path("root/toyset/list.txt")), content_);
}

TEST_F(GetTest, AnotherAddressReplacesTheOfficialOne) {
  for (auto& file : entry_.files) file.base = "http://127.0.0.1:1/";
  get_image_set(entry_, path("root"), server_.url(), options_);
  EXPECT_TRUE(fs::exists(path("root/toyset/inner/a.txt")));
}

// ---- The commands ----

class DataCommandTest : public DownloadTest {
 protected:
  void expect_exit_2(const std::vector<std::string>& arguments,
                     const std::vector<std::string>& parts) {
    const auto result = run_app(arguments);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const auto& part : parts) {
      EXPECT_NE(result.err.find(part), std::string::npos)
          << "'" << part << "' is not in: " << result.err;
    }
  }
  std::string root() const { return path("root").string(); }
};

TEST_F(DataCommandTest, GetSaysWhatIsWrong) {
  expect_exit_2({"data", "get", "nothing"}, {"nothing", "mnist", "cifar10"});
  expect_exit_2({"data", "get", "mnist", "--root", root(), "--url", server_.url()},
                {server_.url("train-images-idx3-ubyte.gz"), "404"});
  server_.put("t/train-images-idx3-ubyte.gz", {.body = std::string(9912422, 'x')});
  expect_exit_2({"data", "get", "mnist", "--root", root(), "--url", server_.url("t")},
                {"MD5", "f68b3c2dcbeaaa9fbdd348bbdeb94873"});
}

TEST_F(DataCommandTest, ListSaysWhereSetsAre) {
  fs::create_directories(path("root/cifar10"));
  const auto result = run_app({"data", "list", "--root", root()});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const std::string& part : {std::string("25gaussians"), "in " + root() + "/cifar10",
                                  std::string("ddaebm data get mnist")}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in: " << result.out;
  }
}

TEST_F(DataCommandTest, InfoCountsAndDraws) {
  const auto pixels = torch::zeros({4, 3, 32, 32}, torch::kUInt8);
  pixels.select(1, 1).fill_(255);
  put_file(path("b.bin"), cifar_of(pixels, torch::tensor({1, 1, 2, 1})));
  const auto result =
      run_app({"data", "info", path("b.bin").string(), "-o", path("b.png").string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"3 x 32 x 32", "0.0000 1.0000 0.0000", "1: 3, 2: 1", "12288"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << " is not in: " << result.out;
  }
  EXPECT_EQ(read_png(path("b.png")).sizes(), (std::vector<int64_t>{32, 4 * 34 - 2, 3}));
  expect_exit_2({"data", "info", path("nothing").string()}, {"nothing"});
  expect_exit_2({"data", "info", path("b.bin").string(), "-o", "x.gif"}, {".png"});
  write_folder(path("mixed"), {{"a.png", png_of(picture(0))}, {"b.png", png_of(picture(1, 9, 9))}});
  expect_exit_2({"data", "info", path("mixed").string()}, {"a.png", "b.png", "data.size"});
  EXPECT_EQ(run_app({"data", "info", path("mixed").string(), "--size", "8"}).code, 0);
}

}  // namespace
}  // namespace ddaebm
