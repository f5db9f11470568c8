#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "ddaebm/serve/counters.h"
#include "ddaebm/serve/http.h"
#include "ddaebm/serve/inputs.h"
#include "ddaebm/serve/worker.h"

namespace ddaebm::serve {

struct ServiceOptions {
  std::filesystem::path run;
  torch::Device device = torch::kCPU;
  WorkerLimits limits;
  std::string token;        // empty: none is asked for
  int64_t calibration = 0;  // training data that are scored; 0: as many as suit the data
  std::string version;
  std::function<void(const std::string&)> warn;
};

// Answers for a run folder: scores, samples, the page and what the page shows. A folder that a
// training still writes to is followed: its newest checkpoint answers.
class Service : public HttpHandler {
 public:
  // Reads the newest checkpoint, where there is one.
  explicit Service(ServiceOptions options);
  ~Service() override;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // All that it answers at, sorted.
  static std::vector<std::string> paths();

  std::optional<Response> refuse(const Request& request) override;
  void handle(Request request, Respond respond) override;
  void answered(int status) override { counters_.count_answer(status); }
  const std::vector<std::pair<std::string, std::string>>& headers() const override {
    return headers_;
  }

 private:
  using Route = void (Service::*)(const Request&, const Respond&);
  struct Method {
    std::string method;
    Route route;
  };
  static const std::map<std::string, Method>& routes();

  void page(const Request& request, const Respond& respond);
  void openapi(const Request& request, const Respond& respond);
  void health(const Request& request, const Respond& respond);
  void metrics(const Request& request, const Respond& respond);
  void model(const Request& request, const Respond& respond);
  void curves(const Request& request, const Respond& respond);
  void landscape(const Request& request, const Respond& respond);
  void score(const Request& request, const Respond& respond);
  void sample(const Request& request, const Respond& respond);

  // The model, or nothing after `respond` was told that there is none yet.
  std::shared_ptr<Snapshot> ready(const Respond& respond) const;
  Worker::Outcome outcome(const Respond& respond,
                          std::function<Response(Snapshot&, const torch::Tensor&)> answer) const;

  // What a request gets that failed by no fault of its own; the log gets the reason.
  Response failed(const std::exception& error) const;

  // Looks for new checkpoints and new lines of metrics.jsonl until the end.
  void follow();
  void look_for_checkpoint();
  void look_for_metrics();

  const ServiceOptions options_;
  SnapshotMaker maker_;
  Counters counters_;
  std::string page_;
  std::vector<std::pair<std::string, std::string>> headers_;

  // What the follower knows.
  std::shared_ptr<nlohmann::ordered_json> facts_;  // of the checkpoint
  uintmax_t metrics_size_ = 0;
  int64_t done_ = 0;  // iterations

  mutable std::mutex mutex_;  // guards what follows
  std::string model_text_, curves_text_ = "{\"series\":{}}";
  bool stopping_ = false;
  std::condition_variable stop_;

  std::optional<Inputs> inputs_;  // from the first checkpoint on
  Worker worker_;
  std::thread follower_;
};

}  // namespace ddaebm::serve
