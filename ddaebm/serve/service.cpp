#include "ddaebm/serve/service.h"

#include <algorithm>
#include <cmath>

#include <openssl/sha.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ddaebm/error.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/markup.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/io/npy.h"
#include "ddaebm/serve/admission.h"
#include "ddaebm/serve/embedded.h"
#include "ddaebm/serve/sample_request.h"
#include "ddaebm/train/checkpoint.h"

namespace ddaebm::serve {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{500};
constexpr std::chrono::seconds kSilence{60};  // a training that says nothing for so long is over
constexpr size_t kCurvePoints = 400;
constexpr size_t kBins = 60;

std::string digest(const std::string& text) {
  std::string out(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(out.data()));
  return out;
}

// JSON knows neither NaN nor infinities.
std::string number_text(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}
Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Response busy() {
  Response response = error_response(429, "too many requests wait; try again soon");
  response.headers.emplace_back("Retry-After", "1");
  return response;
}

// Text between two marks of the page.
std::string between(const std::string& page, const std::string& begin, const std::string& end) {
  const size_t from = page.find(begin) + begin.size();
  return page.substr(from, page.find(end, from) - from);
}

std::string policy_of(const std::string& page) {
  const auto hash = [](const std::string& text) { return "'sha256-" + base64(digest(text)) + "'"; };
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; img-src 'self' blob: data:; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      hash(between(page, "<script>", "</script>")), hash(between(page, "<style>", "</style>")));
}

Json histogram_of(const Reference& reference) {
  const auto& scores = reference.scores();
  if (scores.empty()) return nullptr;
  // The middle 99 %; what lies beyond counts in the outermost bins.
  const size_t edge = scores.size() / 200;
  const double low = scores[edge];
  const double high = scores[scores.size() - 1 - edge];
  if (!std::isfinite(low) || !std::isfinite(high)) return nullptr;
  std::vector<int64_t> bins(kBins);
  for (const double score : scores) {
    const double place = high > low ? (score - low) / (high - low) * kBins : 0;
    ++bins.at(static_cast<size_t>(std::clamp(place, 0.0, kBins - 1.0)));
  }
  return {{"count", scores.size()}, {"low", low}, {"high", high}, {"bins", bins}};
}

Json facts_of(const Snapshot& snapshot, const Inputs& inputs) {
  const auto& event = snapshot.model.event();
  const bool plane = event == std::vector<int64_t>{2};
  const auto& profile = snapshot.threshold.profile;
  Json json = {{"iteration", snapshot.iteration},
               {"kind", plane                    ? "plane"
                        : inputs.image().empty() ? "rows"
                                                 : "images"},
               {"event", event},
               {"image", inputs.image().empty() ? Json(nullptr) : Json(inputs.image())},
               {"times", snapshot.model.times()},
               {"threshold",
                {{"log_density", number_json(snapshot.threshold.score)},
                 {"profile", profile ? number_json(profile->score) : Json(nullptr)},
                 {"false_alarm", snapshot.threshold.false_alarm},
                 {"source", snapshot.stored_threshold ? "ood" : "training scores"}}},
               {"training_scores", histogram_of(snapshot.reference)},
               {"window", nullptr}};
  if (plane) {
    json["window"] = {{"x", {snapshot.x_window.low, snapshot.x_window.high}},
                      {"y", {snapshot.y_window.low, snapshot.y_window.high}}};
  }
  return json;
}

Response scores_response(const Snapshot& by, const torch::Tensor& scores) {
  std::string text = fmt::format("{{\"iteration\":{},\"scores\":[", by.iteration);
  const auto& profile = by.threshold.profile;
  const double threshold = profile ? profile->score : by.threshold.score;
  const auto score = scores.accessor<double, 2>();
  for (int64_t i = 0; i < scores.size(0); ++i) {
    const double value = score[i][0];
    // NaN is not in.
    const char* answer = std::isnan(threshold)                       ? "null"
                         : score[i][scores.size(1) - 1] >= threshold ? "\"in\""
                                                                     : "\"out\"";
    text +=
        fmt::format("{}{{\"log_density\":{},\"p_value\":{},\"profile\":{},\"answer\":{}}}",
                    i > 0 ? "," : "", number_text(value), number_text(by.reference.p_value(value)),
                    profile ? number_text(score[i][1]) : "null", answer);
  }
  return {200, text + "]}\n"};
}

void append_numbers(std::string& text, const torch::Tensor& x) {
  const auto rows = x.to(torch::kFloat).contiguous().flatten(1);
  const float* number = rows.data_ptr<float>();
  text += '[';
  for (int64_t i = 0; i < rows.size(0); ++i) {
    text += i > 0 ? ",[" : "[";
    for (int64_t k = 0; k < rows.size(1); ++k) {
      if (k > 0) text += ',';
      text += number_text(*number++);
    }
    text += ']';
  }
  text += ']';
}

Response samples_response(Snapshot& by, const Inputs& inputs, const SampleRequest& wanted) {
  const auto path = wanted.path ? by.model.sample_path(wanted.n, wanted.seed)
                                : std::vector{by.model.sample(wanted.n, wanted.seed)};
  if (wanted.format == "npy") {
    const auto array = wanted.path ? torch::stack(path) : path.back();
    return {200, format_npy("samples", array), "application/x-npy"};
  }
  if (wanted.format == "png") {
    // Steps one below the other.
    std::vector<torch::Tensor> grids;
    const auto columns = static_cast<int64_t>(std::ceil(std::sqrt(wanted.n)));
    for (const auto& x : path) grids.push_back(image_grid(inputs.to_images(x), columns));
    return {200, encode_png(torch::cat(grids)), "image/png"};
  }
  std::string text =
      fmt::format("{{\"iteration\":{},\"seed\":{},\"samples\":", by.iteration, wanted.seed);
  append_numbers(text, path.back());
  if (wanted.path) {
    text += ",\"path\":[";
    for (size_t i = 0; i < path.size(); ++i) {
      if (i > 0) text += ',';
      append_numbers(text, path[i]);
    }
    text += ']';
  }
  return {200, text + "}\n"};
}

}  // namespace

Service::Service(ServiceOptions options)
    : options_(std::move(options)),
      maker_(options_.run, options_.device, options_.calibration, options_.warn),
      page_(kPage),
      headers_({{"X-Content-Type-Options", "nosniff"},
                {"Referrer-Policy", "no-referrer"},
                {"Cross-Origin-Resource-Policy", "same-origin"},
                {"Cache-Control", "no-store"},
                {"Content-Security-Policy", policy_of(page_)}}),
      worker_(options_.limits,
              [this](int64_t requests, int64_t rows) { counters_.count_batch(requests, rows); }) {
  look_for_checkpoint();
  look_for_metrics();
  follower_ = std::thread([this] { follow(); });
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  follower_.join();
}

const std::map<std::string, Service::Method>& Service::routes() {
  static const std::map<std::string, Method> all = {
      {"/", {"GET", &Service::page}},
      {"/healthz", {"GET", &Service::health}},
      {"/metrics", {"GET", &Service::metrics}},
      {"/v1/openapi.json", {"GET", &Service::openapi}},
      {"/v1/model", {"GET", &Service::model}},
      {"/v1/curves", {"GET", &Service::curves}},
      {"/v1/landscape", {"GET", &Service::landscape}},
      {"/v1/score", {"POST", &Service::score}},
      {"/v1/sample", {"POST", &Service::sample}}};
  return all;
}

std::vector<std::string> Service::paths() {
  std::vector<std::string> all;
  for (const auto& [path, method] : routes()) all.push_back(path);
  return all;
}

std::optional<Response> Service::refuse(const Request& request) {
  if (auto refusal = refuse_stranger(request, options_.token)) return refusal;
  const auto found = routes().find(request.path);
  if (found == routes().end()) {
    return error_response(404, "no such path; /v1/openapi.json lists them");
  }
  if (found->second.method != request.method) {
    Response response = error_response(405, "use " + found->second.method);
    response.headers.emplace_back("Allow", found->second.method);
    return response;
  }
  if (request.method == "GET" && request.content_length > 0) {
    return error_response(400, "GET has no body");
  }
  return {};
}

void Service::handle(Request request, Respond respond) {
  const auto& [path, method] = *routes().find(request.path);
  const auto began = std::chrono::steady_clock::now();
  const Respond timed = [this, began, name = path, respond](Response response) {
    counters_.count_time(name, std::chrono::steady_clock::now() - began);
    respond(std::move(response));
  };
  try {
    (this->*method.route)(request, timed);
  } catch (const Error& error) {
    timed(error_response(400, error.what()));
  } catch (const std::exception& error) {
    timed(failed(error));
  }
}

void Service::page(const Request&, const Respond& respond) {
  respond({200, page_, "text/html; charset=utf-8"});
}

void Service::openapi(const Request&, const Respond& respond) {
  respond({200, std::string(kOpenApi)});
}

void Service::health(const Request&, const Respond& respond) {
  const auto snapshot = worker_.snapshot();
  if (!snapshot) return respond({503, "{\"status\":\"waiting for the first checkpoint\"}\n"});
  respond({200, "{\"status\":\"ok\"}\n"});
}

void Service::metrics(const Request&, const Respond& respond) {
  const auto snapshot = worker_.snapshot();
  respond({200, counters_.text(worker_.waiting(), snapshot ? snapshot->iteration : 0),
           "text/plain; version=0.0.4"});
}

void Service::model(const Request&, const Respond& respond) {
  const std::lock_guard lock(mutex_);
  respond({200, model_text_});
}

void Service::curves(const Request&, const Respond& respond) {
  const std::lock_guard lock(mutex_);
  respond({200, curves_text_});
}

void Service::landscape(const Request&, const Respond& respond) {
  const auto snapshot = ready(respond);
  if (!snapshot) return;
  if (snapshot->landscape.empty()) {
    return respond(error_response(404, "only models of 2-D data have a landscape"));
  }
  respond({200,
           snapshot->landscape,
           "application/x-npy",
           {{"X-Iteration", std::to_string(snapshot->iteration)}}});
}

void Service::score(const Request& request, const Respond& respond) {
  if (!ready(respond)) return;
  auto rows = inputs_->parse(request.body);
  if (!worker_.score(std::move(rows), outcome(respond, scores_response))) respond(busy());
}

void Service::sample(const Request& request, const Respond& respond) {
  const auto snapshot = ready(respond);
  if (!snapshot) return;
  int64_t numbers = 1;
  for (const int64_t size : snapshot->model.event()) numbers *= size;
  const auto wanted = parse_sample_request(request.body, *inputs_, numbers);
  const bool taken = worker_.run(outcome(respond, [this, wanted](Snapshot& by, const auto&) {
    const std::lock_guard lock(maker_.drawing);
    return samples_response(by, *inputs_, wanted);
  }));
  if (!taken) respond(busy());
}

std::shared_ptr<Snapshot> Service::ready(const Respond& respond) const {
  auto snapshot = worker_.snapshot();
  if (!snapshot) {
    Response response = error_response(503, "the run has no checkpoint yet; try again later");
    response.headers.emplace_back("Retry-After", "5");
    respond(std::move(response));
  }
  return snapshot;
}

Worker::Outcome Service::outcome(
    const Respond& respond, std::function<Response(Snapshot&, const torch::Tensor&)> answer) const {
  return {[respond, answer = std::move(answer)](Snapshot& by, const torch::Tensor& scores) {
            respond(answer(by, scores));
          },
          [this, respond](const std::exception_ptr& why) {
            try {
              std::rethrow_exception(why);
            } catch (const WaitedTooLong&) {
              respond(error_response(503, "the request waited too long; try again later"));
            } catch (const Error& error) {
              respond(error_response(400, error.what()));
            } catch (const std::exception& error) {
              respond(failed(error));
            }
          }};
}

Response Service::failed(const std::exception& error) const {
  options_.warn(fmt::format("a request failed: {}", error.what()));
  return error_response(500, "a bug, or no memory left; the server's log says more");
}

void Service::follow() {
  std::string last_warning;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, kLook, [&] { return stopping_; })) return;
    }
    try {
      look_for_checkpoint();
      look_for_metrics();
    } catch (const std::exception& error) {
      if (last_warning != error.what()) options_.warn(last_warning = error.what());
      std::unique_lock lock(mutex_);
      if (stop_.wait_for(lock, 10 * kLook, [&] { return stopping_; })) return;
    }
  }
}

void Service::look_for_checkpoint() {
  const auto current = worker_.snapshot();
  const int64_t newest = maker_.newest();
  if (newest < 0 || (current && newest == current->iteration)) return;
  const auto made = maker_.make();
  // Data have one shape, whatever the checkpoint. Requests look at it once there is a model.
  if (!inputs_) inputs_.emplace(made->model.event(), maker_.settings().data);
  facts_ = std::make_shared<Json>(facts_of(*made, *inputs_));
  worker_.use(made);
}

void Service::look_for_metrics() {
  const fs::path path = RunFolder{options_.run}.metrics();
  std::error_code none;
  const auto size = fs::file_size(path, none);
  auto& settings = maker_.settings();
  if (!none && size != metrics_size_) {
    metrics_size_ = size;
    std::map<std::string, std::vector<std::pair<double, double>>> series;
    for (const auto& line : read_metrics(path)) {
      if (!line["iteration"].is_number()) continue;
      for (const auto& [name, value] : line.items()) {
        if (!value.is_number()) continue;
        series[name].emplace_back(line["iteration"].get<double>(), value.get<double>());
      }
    }
    if (const auto done = series.find("iteration"); done != series.end()) {
      done_ = static_cast<int64_t>(done->second.back().second);
    }
    Json json = {{"series", Json::object()}};
    for (const auto& [name, points] : series) {
      if (name == "iteration") continue;
      // Each point stands for as many lines, so that noise does not hide the way.
      const size_t stride = (points.size() + kCurvePoints - 1) / kCurvePoints;
      Json& kept = json["series"][name] = Json::array();
      for (size_t from = 0; from < points.size(); from += stride) {
        const size_t to = std::min(from + stride, points.size());
        double mean = 0;
        for (size_t i = from; i < to; ++i)
          mean += points[i].second / static_cast<double>(to - from);
        kept.push_back({points[to - 1].first, number_json(mean)});
      }
    }
    const std::lock_guard lock(mutex_);
    curves_text_ = json.dump() + "\n";
  }
  const auto written = none ? fs::file_time_type::min() : fs::last_write_time(path, none);
  const char* state = done_ >= settings.train.iterations                      ? "finished"
                      : fs::file_time_type::clock::now() - written < kSilence ? "training"
                                                                              : "stopped";
  Json json = {{"name", fs::absolute(options_.run).lexically_normal().filename().string()},
               {"method", settings.method},
               {"data", settings.data.name},
               {"version", options_.version},
               {"state", state},
               {"done", done_},
               {"iterations", settings.train.iterations},
               {"model", facts_ ? *facts_ : Json(nullptr)}};
  const std::lock_guard lock(mutex_);
  model_text_ = json.dump() + "\n";
}

}  // namespace ddaebm::serve
