#include "targets.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>

#include "../http_client.h"
#include <unistd.h>

#include <torch/types.h>

#include "ddaebm/config.h"
#include "ddaebm/data/cifar_python.h"
#include "ddaebm/data/decode.h"
#include "ddaebm/data/image_files.h"
#include "ddaebm/data/records.h"
#include "ddaebm/error.h"
#include "ddaebm/io/authors_checkpoint.h"
#include "ddaebm/io/csv.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/io/safetensors.h"
#include "ddaebm/io/torch_checkpoint.h"
#include "ddaebm/serve/admission.h"
#include "ddaebm/serve/http.h"
#include "ddaebm/serve/inputs.h"
#include "ddaebm/serve/sample_request.h"

namespace ddaebm {
namespace {

namespace fs = std::filesystem;

// The bytes as a file in memory, in a folder of this process.
fs::path as_file(std::string_view bytes, const std::string& name) {
  static const fs::path folder = [] {
    const fs::path memory = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
    const fs::path made = memory / ("ddaebm-fuzz-" + std::to_string(::getpid()));
    fs::create_directories(made);
    return made;
  }();
  const fs::path path = folder / name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

void touch(const torch::Tensor& tensor) { (void)tensor.to(torch::kFloat64).sum().item<double>(); }

void touch(const PickleValue& value, int depth) {
  if (const auto* tensor = value.tensor()) touch(*tensor);
  if (depth == 0) return;
  if (value.list() != nullptr) {
    for (const auto& item : *value.list()) touch(item, depth - 1);
  }
  if (value.dict() != nullptr) {
    for (const auto& entry : *value.dict()) touch(entry.second, depth - 1);
  }
}

void touch(const ImageFiles& files) {
  for (int64_t i = 0; i < std::min<int64_t>(files.size(), 8); ++i) {
    (void)files.name(i);
    try {
      (void)decode_image(files.bytes(i));
    } catch (const Error&) {
    }
  }
}

struct SomeSettings {
  bool flag = false;
  int64_t whole = 1;
  double number = 1;
  std::string text;
  std::vector<int64_t> list;
  void visit(Fields& f) {
    f("flag", flag, "");
    f("whole", whole, between(0, 10), "");
    f("number", number, "");
    f("text", text, "");
    f("list", list, at_least(0), "");
  }
};

void read_toml(std::string_view bytes) {
  SomeSettings settings;
  Fields fields;
  fields.section("train", settings);
  auto file = ConfigFile::parse(std::string(bytes.substr(0, bytes.size() / 2)), "fuzz.toml");
  file.set(std::string(bytes.substr(bytes.size() / 2)));
  file.fill(fields);
  (void)to_toml(fields);
}
void read_pickle(std::string_view bytes) {
  // As data.pkl would be, over a storage of 24 floats whatever its name.
  const PickleValue storage(torch::arange(24.0F));
  touch(take_pickle("fuzz", bytes, [&](const auto&) { return storage; }).value, 4);
}
void read_pth(std::string_view bytes) {
  const auto path = as_file(bytes, "file.pth");
  const auto content = read_torch_checkpoint(path).value;
  touch(content, 4);
  find_authors_networks(path, content);
}
void read_lmdb(std::string_view bytes) {
  touch(*open_lmdb(as_file(bytes, "data.mdb").parent_path()));
}
void read_tar(std::string_view bytes) {
  touch(*open_tar({as_file(bytes, "shard.tar")}, [](const auto&) {}));
}

// Models that a server may have: of rows, of images, of images as logits.
const std::vector<serve::Inputs>& served_models() {
  static const std::vector<serve::Inputs> all = [] {
    DataConfig data;
    std::vector<serve::Inputs> made = {{{2}, data}, {{3, 4, 4}, data}};
    data.logit = true;
    made.push_back({{16}, data});
    return made;
  }();
  return all;
}

// The body of a request, for scores or for samples.
void read_body(std::string_view bytes) {
  const std::string body(bytes);
  for (const auto& inputs : served_models()) {
    try {
      touch(inputs.parse(body));
    } catch (const Error&) {
    }
    try {
      const auto wanted = serve::parse_sample_request(body, inputs, 16);
      if (wanted.n < 1 || wanted.n > 10000) throw std::logic_error("so many samples");
    } catch (const Error&) {
    }
  }
}

// Reads what is asked as the service does, without a model. "/token" stands for a server that
// wants one.
class Reader : public serve::HttpHandler {
 public:
  std::optional<serve::Response> refuse(const serve::Request& request) override {
    return serve::refuse_stranger(request, request.path == "/token" ? "a" : "");
  }
  void handle(serve::Request request, serve::Respond respond) override {
    read_body(request.body);
    respond({200, request.query});
  }
  void answered(int status) override { bug = bug || status == 500; }
  const std::vector<std::pair<std::string, std::string>>& headers() const override {
    return headers_;
  }
  std::atomic<bool> bug = false;

 private:
  std::vector<std::pair<std::string, std::string>> headers_;
};

// All that a client sends on one connection.
void read_http(std::string_view bytes) {
  static Reader reader;
  static const serve::HttpServer server(
      [] {
        serve::HttpOptions options;
        options.body = 8192;
        options.threads = 1;
        return options;
      }(),
      reader);
  Connection connection(server.port());
  connection.send(std::string(bytes));
  const std::string answer = connection.finish();
  if (reader.bug) throw std::logic_error("a request was answered with 500");
  if (!answer.empty() && !answer.starts_with("HTTP/1.1 ")) throw std::logic_error("no HTTP");
}

}  // namespace

const std::vector<FuzzTarget>& fuzz_targets() {
  static const std::vector<FuzzTarget> targets = {
      {"toml", read_toml},
      {"safetensors",
       [](std::string_view b) {
         for (const auto& item : read_safetensors(as_file(b, "f.safetensors")).tensors) {
           touch(item.second);
         }
       }},
      {"npy", [](std::string_view b) { touch(read_npy(as_file(b, "f.npy"))); }},
      {"npz",
       [](std::string_view b) {
         for (const auto& item : read_npz(as_file(b, "f.npz"))) touch(item.second);
       }},
      {"csv", [](std::string_view b) { touch(read_csv(as_file(b, "f.csv")).rows); }},
      {"idx", [](std::string_view b) { touch(read_idx(as_file(b, "f-idx3-ubyte.gz"))); }},
      {"cifar_binary",
       [](std::string_view b) { touch(read_cifar_binary(as_file(b, "f.bin")).first); }},
      {"cifar_python",
       [](std::string_view b) { touch(read_cifar_python(as_file(b, "f.pkl")).first); }},
      {"image", [](std::string_view b) { (void)decode_image(b); }},
      {"lmdb", read_lmdb},
      {"tar", read_tar},
      {"pickle", read_pickle},
      {"pth", read_pth},
      {"metrics", [](std::string_view b) { (void)read_metrics(as_file(b, "metrics.jsonl")); }},
      {"body", read_body},
      {"http", read_http},
  };
  return targets;
}

void fuzz(const FuzzTarget& target, std::string_view bytes) {
  try {
    target.read(bytes);
  } catch (const Error&) {
  }
}

}  // namespace ddaebm
