#include "ddaebm/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "ddaebm/dist/ranks.h"
#include "ddaebm/error.h"
#include "ddaebm/io/event_file.h"
#include "ddaebm/io/file.h"
#include "ddaebm/io/image.h"
#include "ddaebm/io/lock.h"
#include "ddaebm/io/metrics_lines.h"
#include "ddaebm/io/report.h"
#include "ddaebm/nets/mlp.h"
#include "ddaebm/tf32.h"
#include "ddaebm/train/evaluation.h"
#include "ddaebm/train/graph.h"
#include "ddaebm/train/memory.h"
#include "ddaebm/train/progress.h"

namespace ddaebm {
namespace {

using Json = nlohmann::ordered_json;

// Settings that may change when a run is resumed: they do not touch what is computed.
bool may_change(const std::string& key) {
  return key == "train.log_every" || key == "train.evaluate_every" ||
         key == "train.evaluation_samples" || key == "train.checkpoint_every" ||
         key == "train.keep" || key == "train.micro_batch" || key == "train.divergence_limit" ||
         key == "train.tensorboard" || key == "train.on_divergence" || key == "train.rollbacks" ||
         key == "ranks.verify_every";
}

}  // namespace

void check_same_run(RunSettings& wanted, const RunFolder& folder) {
  RunSettings was(ConfigFile::parse(read_file(folder.config()), folder.config().string()));
  const Fields a = was.fields();
  const Fields b = wanted.fields();
  for (size_t i = 0; i < a.list().size() && i < b.list().size(); ++i) {
    const std::string key = a.list()[i].key;
    const std::string before = value_text(a.list()[i]);
    const std::string now = value_text(b.list()[i]);
    if (key != b.list()[i].key || (before != now && !may_change(key))) {
      fail(
          "{}: the run has {} = {}, now it is {}; resume with the run's own settings "
          "(`ddaebm train {} --resume`), or choose another --out",
          folder.path.string(), key, before, now, folder.path.string());
    }
  }
}

namespace {

// Drops the lines of iterations that the run will do again. Returns the seconds that the rest took.
double cut_metrics(const RunFolder& folder, int64_t iteration) {
  double seconds = 0;
  if (!std::filesystem::exists(folder.metrics())) return seconds;
  std::string kept;
  for (const Json& json : read_metrics(folder.metrics())) {
    const auto& of = json["iteration"];
    if (!of.is_number_integer() || of.get<int64_t>() > iteration) continue;
    kept += json.dump() + "\n";
    if (json.contains("seconds") && json["seconds"].is_number()) seconds = json["seconds"];
  }
  write_file(folder.metrics(), kept);
  return seconds;
}

void append_line(const std::filesystem::path& path, const Json& json) {
  std::ofstream out(path, std::ios::app);
  out << json.dump() << '\n' << std::flush;
  if (!out) fail("{}: cannot write; is the disk full?", path.string());
}

// A number by which evaluations compare, the first of these that there is; lower is better.
std::optional<std::pair<std::string, double>> quality(
    const std::vector<std::pair<std::string, double>>& numbers) {
  for (const char* metric : {"fid", "fid768", "modes_kl", "kl", "mmd"}) {
    for (const auto& number : numbers) {
      if (number.first == metric && std::isfinite(number.second)) return number;
    }
  }
  return {};
}

// What showed that a run went astray.
struct Divergence {
  int64_t iteration = 0;
  std::string what;
};

class Training {
 public:
  Training(RunSettings& settings, const TrainOptions& options, const Ranks& ranks,
           Random::Generator generator = Random::Generator::shared)
      : settings_(settings),
        options_(options),
        ranks_(ranks),
        folder_{options.folder},
        tensors_(torch::TensorOptions(settings.train.float64 ? torch::kDouble : torch::kFloat)
                     .device(options.device)),
        batch_(settings.train.batch / ranks.size()),
        source_(open_source()),
        units_(source_->units()),
        random_(options.device, training_seed(), generator,
                settings.ranks.joined_draws ? ranks.share() : Share{}),
        writer_(options.device) {
    // Their dropout draws from the default generator.
    if (generator == Random::Generator::own && source_->event().size() == 3) {
      fail("--seeds is for models of vectors; train images with one process a seed");
    }
    if (batch_ * ranks.size() != settings.train.batch || batch_ < 1) {
      fail("train.batch = {} cannot be shared by {} ranks; make it a multiple of that",
           settings.train.batch, ranks.size());
    }
    Random initial(torch::kCPU, static_cast<uint64_t>(settings.seed));
    method_ = settings.method_settings->build(source_->event(), tensors_);
    method_->micro_batch = settings.train.micro_batch;
    optimizer_ = std::make_unique<Optimizer>(*method_, settings.train.optimizer, &ranks);
    progress_ = torch::zeros({}, tensors_);
    const auto kinds = static_cast<int64_t>(method_->loss_names().size());
    const auto players = static_cast<int64_t>(method_->players().size());
    noted_ = torch::zeros({kinds + players}, tensors_);
    losses_ = noted_.slice(0, 0, kinds);
    recent_ = torch::zeros({settings.train.log_every, kinds + players}, tensors_);
    if (ranks.size() > 1 && settings.ranks.batch_statistics == BatchStatistics::synchronised) {
      const ops::SpreadBatch spread{ranks.size(),
                                    [&ranks](const torch::Tensor& x) { ranks.sum(x); }};
      for (const auto& module : method_->module().modules()) {
        if (auto* mlp = dynamic_cast<MlpImpl*>(module.get())) mlp->spread_batch(spread);
      }
    }
    ranks_.check_equal(std::hash<std::string>()(settings.to_toml()), "the settings");
    if (ranks_.first()) open_folder();
    share_state();
  }

  void begin() {
    const bool same =
        units_.shift.eq(0).all().item<bool>() && units_.scale.eq(1).all().item<bool>();
    // In float64: a column far from zero has few digits left in float32.
    if (!same) exact_ = units_.to(tensors_.dtype(torch::kDouble));
    std::vector<torch::Tensor> changed = {noted_};
    for (const auto& [name, tensor] : optimizer_->state()) changed.push_back(tensor);
    random_.restart(Random::kTraining, 0);
    if (source_->event().size() == 3) check_memory(changed);
    source_->prepare(next_, batch_);
    step_ = std::make_unique<RepeatedStep>([this] { iterate(batch_); }, changed, options_.device,
                                           random_.generator());
    if (!options_.quiet) {
      bar_ = std::make_unique<Progress>(settings_.data.name, settings_.train.iterations, next_);
    }
    const bool needs_start = settings_.train.on_divergence == OnDivergence::rollback && next_ == 0;
    if (needs_start && ranks_.first()) save();
  }

  // One iteration, with what is due after it. Returns whether there is more to do.
  bool advance(const std::atomic<int>& stop) {
    const TrainConfig& config = settings_.train;
    if (next_ >= config.iterations) return end();
    random_.restart(Random::kTraining, static_cast<uint64_t>(next_));
    progress_.fill_(static_cast<double>(next_) / static_cast<double>(config.iterations));
    optimizer_->set_iteration(next_, config.iterations, facts_.rate);
    source_->prepare(next_, batch_);
    (*step_)();
    recent_[pending_++].copy_(noted_);
    ++next_;

    const bool last = next_ == config.iterations;
    const bool line = next_ % config.log_every == 0;
    // Read once: a signal during the evaluation below is obeyed one iteration later. Ranks must
    // agree, which costs them a little time.
    const bool stopping = ranks_.size() == 1 ? stop != 0 : line && ranks_.any(stop != 0);
    bool save_due = last || stopping || next_ % config.checkpoint_every == 0;
    const bool evaluation =
        last || (config.evaluate_every > 0 && next_ % config.evaluate_every == 0);
    std::optional<Divergence> divergence;
    if (save_due || evaluation || line) divergence = log();
    if (bar_) bar_->update(next_, note_);
    if (!divergence && (save_due || evaluation)) divergence = check_state();
    if (divergence) {
      roll_back(*divergence);
      return true;
    }
    if (ranks_.size() > 1 && (save_due || next_ % settings_.ranks.verify_every == 0)) {
      ranks_.check_equal(optimizer_->checksum(),
                         fmt::format("the weights, at iteration {},", next_));
    }
    if (evaluation && ranks_.first()) save_due = evaluate_now() || save_due;
    if (save_due && ranks_.first()) {
      save();
      write_report(folder_.path);
    }
    if (last) return end();
    if (stopping) writer_.wait();
    return !stopping;
  }

  int64_t done() const { return next_; }
  TrainResult result() const { return {finished_, numbers_}; }

 private:
  std::unique_ptr<DataSource> open_source() const {
    if (options_.open_source) return options_.open_source(options_.device);
    return open_data(settings_.data, options_.device,
                     options_.quiet ? ReadHooks{} : ReadHooks{late_progress("reading")},
                     static_cast<uint64_t>(settings_.seed), ranks_.share());
  }

  bool end() {
    finished_ = true;
    if (!ranks_.first()) return false;
    writer_.wait();
    write_report(folder_.path);
    // A run that was finished before has its numbers there.
    if (numbers_.empty() && std::filesystem::exists(folder_.evaluation())) {
      const auto json = Json::parse(read_file(folder_.evaluation()), nullptr, false);
      for (const auto& [name, value] : json.items()) {
        const bool progress = name == "iteration" || name == "seconds" || name == "images";
        if (!progress && value.is_number()) numbers_.emplace_back(name, value.get<double>());
      }
    }
    bar_.reset();
    return false;
  }

  void iterate(int64_t batch) {
    // Networks for images have a setting of their own.
    std::optional<AllowTf32> rounding;
    if (source_->event().size() == 1) rounding.emplace(settings_.train.tf32);
    const auto drawn = source_->draw(batch, random_);
    const auto x0 = (exact_ ? exact_->to_model(drawn) : drawn).to(tensors_);
    losses_.copy_(method_->step(x0, progress_, random_,
                                [&](size_t player, const torch::Tensor& loss, bool final_part) {
                                  optimizer_->update(player, loss, final_part);
                                }));
    optimizer_->average_buffers();
    noted_.slice(0, losses_.numel()).copy_(optimizer_->gradient_norms());
  }

  uint64_t training_seed() const {
    const auto seed = static_cast<uint64_t>(settings_.seed);
    const bool own = ranks_.size() > 1 && !settings_.ranks.joined_draws;
    return own ? Random::mix(seed ^ Random::mix(static_cast<uint64_t>(ranks_.rank() + 1))) : seed;
  }

  void open_folder() {
    namespace fs = std::filesystem;
    const bool there = fs::exists(folder_.config());
    if (there && !options_.resume) {
      fail("{} holds a run already; continue it with --resume, or choose another --out",
           folder_.path.string());
    }
    if (!there && fs::is_directory(folder_.path) && !folder_.checkpoints().empty()) {
      fail("{} holds checkpoints but no config.toml; choose another --out", folder_.path.string());
    }
    std::error_code error;
    fs::create_directories(folder_.path, error);
    if (error) fail("{}: {}", folder_.path.string(), error.message());
    lock_.emplace(folder_.path);
    remove_temporary_files(folder_.path);
    facts_.method = settings_.method;
    facts_.data = source_->fingerprint();
    if (there) {
      check_same_run(settings_, folder_);
      load();
      seconds_before_ = cut_metrics(folder_, next_);
    }
    write_file(folder_.config(), settings_.to_toml());
    resumed_at_ = next_;
  }

  // The newest checkpoint that is whole, where there is one. Those that are not are set aside.
  void load() {
    std::vector<std::filesystem::path> damaged;
    const auto checkpoint =
        Checkpoint::newest(folder_, [&](const std::filesystem::path& path, const std::string& why) {
          damaged.push_back(path);
          ReadHooks::warn_on_stderr(why);
        });
    for (const auto& path : damaged) {
      std::filesystem::rename(path, path.string() + ".damaged");
    }
    if (!checkpoint) return;
    const std::string data = std::exchange(facts_.data, {});
    facts_ = checkpoint->facts();
    if (!damaged.empty()) {
      ReadHooks::warn_on_stderr(fmt::format("the run goes on from iteration {}, of {}",
                                            facts_.iteration,
                                            folder_.checkpoint(facts_.iteration).string()));
    }
    if (!facts_.data.empty() && facts_.data != data) {
      fail(
          "{}: the data have changed since the run began (then {}; now {}); put them back, or "
          "start another run",
          settings_.data.name, facts_.data, data);
    }
    facts_.data = data;
    checkpoint->copy_to(settings_.method, optimizer_->state(), units_);
    next_ = facts_.iteration;
  }

  // What the first rank has read, to all.
  void share_state() {
    const auto numbers = torch::tensor({static_cast<double>(next_), facts_.rate,
                                        static_cast<double>(facts_.rollbacks), seconds_before_},
                                       torch::kDouble);
    std::vector<torch::Tensor> small = {units_.shift, units_.scale, numbers};
    for (auto& tensor : small) {
      const auto there = tensor.to(options_.device).contiguous();
      ranks_.from_first(there);
      tensor.copy_(there);
    }
    for (const auto& flat : optimizer_->flat_state()) ranks_.from_first(flat);
    next_ = numbers[0].item<int64_t>();
    facts_.rate = numbers[1].item<double>();
    facts_.rollbacks = numbers[2].item<int64_t>();
    seconds_before_ = numbers[3].item<double>();
  }

  void save() {
    facts_.iteration = next_;
    writer_.save(folder_, facts_, optimizer_->state(), units_, settings_.train.keep);
  }

  // Goes on from the last checkpoint with a smaller step size; an Error where the settings say so,
  // or have said it too often. Every rank comes here with the same.
  void roll_back(const Divergence& divergence) {
    const TrainConfig& config = settings_.train;
    const bool stops = config.on_divergence == OnDivergence::stop;
    const bool may = !stops && facts_.rollbacks < config.rollbacks;
    if (ranks_.first()) {
      writer_.wait();
      report_divergence(divergence, may);
    }
    if (!may) {
      const auto there = ranks_.first() ? folder_.checkpoints() : std::vector<int64_t>{};
      fail(
          "iteration {}: {}; {}lower train.lr, raise the penalty (game.gamma) or set train.clip. "
          "{}",
          divergence.iteration, divergence.what,
          stops ? std::string()
                : fmt::format("after {} rollbacks the run stops; ", facts_.rollbacks),
          there.empty() ? std::string("There is no checkpoint yet")
                        : fmt::format("The last checkpoint is from before, {}",
                                      folder_.checkpoint(there.back()).string()));
    }
    const double rate = facts_.rate * config.rollback_rate;
    const int64_t count = facts_.rollbacks + 1;
    if (ranks_.first()) {
      set_aside_what_was_tried();
      load();
      (void)cut_metrics(folder_, next_);
    }
    share_state();
    facts_.rate = rate;
    facts_.rollbacks = count;
    facts_.rolled_back = next_;
    pending_ = 0;
    // At once: a run that is killed now goes on from here with the smaller step size too.
    if (ranks_.first()) save();
    if (!options_.quiet) {
      ReadHooks::warn_on_stderr(fmt::format(
          "iteration {}: {}; back to iteration {} with {} times the step size (rollback {} of {})",
          divergence.iteration, divergence.what, next_, rate, count, config.rollbacks));
    }
  }

  // A checkpoint that a rollback led to and that led astray again was taken too late.
  void set_aside_what_was_tried() const {
    const auto there = folder_.checkpoints();
    if (there.size() < 2) return;
    const auto newest = folder_.checkpoint(there.back());
    if (Checkpoint(newest).facts().rolled_back != there.back()) return;
    std::filesystem::rename(newest, newest.string() + ".diverged");
  }

  // All that may help to find the cause, as a line of divergences.jsonl.
  void report_divergence(const Divergence& divergence, bool rolls_back) const {
    Json line;
    line["iteration"] = divergence.iteration;
    line["what"] = divergence.what;
    line["tensors_not_finite"] = Json::array();
    for (const auto& [name, tensor] : optimizer_->state()) {
      if (!tensor.isfinite().all().item<bool>()) line["tensors_not_finite"].push_back(name);
    }
    // Numbers that are not finite are null in JSON.
    const auto values = recent_.slice(0, 0, pending_).to(torch::kCPU, torch::kDouble);
    const auto column = [&](int64_t k) {
      const auto all = values.select(1, k).contiguous();
      return std::vector<double>(all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
    };
    const auto& names = method_->loss_names();
    const auto& players = method_->players();
    line["first_of_these"] = next_ - pending_ + 1;
    for (size_t k = 0; k < names.size(); ++k) {
      line["losses"][names[k]] = column(static_cast<int64_t>(k));
    }
    for (size_t k = 0; k < players.size(); ++k) {
      line["gradient_norms"][players[k].name] = column(static_cast<int64_t>(names.size() + k));
    }
    line["rate"] = facts_.rate;
    line["then"] = rolls_back ? "rollback" : "stop";
    append_line(folder_.divergences(), line);
  }

  // Expects what a step will take from what steps on two and on four images take, and says so
  // before the first.
  void check_memory(const std::vector<torch::Tensor>& changed) {
    const int64_t at_once =
        method_->micro_batch > 0 ? std::min(method_->micro_batch, batch_) : batch_;
    if (at_once < 8 || !options_.device.is_cuda()) return;
    std::vector<torch::Tensor> kept;
    for (const auto& tensor : changed) kept.push_back(tensor.detach().clone());
    const auto peak = [&](int64_t batch) {
      source_->prepare(next_, batch);
      iterate(batch);  // libraries take workspaces at their first call
      return static_cast<double>(peak_memory([&] { iterate(batch); }, options_.device).value_or(0));
    };
    const double two = peak(2);
    const double an_image = std::max(0.0, (peak(4) - two) / 2);
    const double expected = two + static_cast<double>(at_once - 2) * an_image;
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < changed.size(); ++i) torch::Tensor(changed[i]).copy_(kept[i]);
    const auto available = static_cast<double>(free_memory(options_.device));
    constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
    if (available > 0 && expected > available) {
      const auto fits = static_cast<int64_t>(2 + (0.9 * available - two) / an_image);
      fail(
          "a step on {} images is expected to take {:.1f} GiB, {:.1f} GiB are free on {}; set "
          "train.micro_batch={}, or image_net.precision=\"bf16\"",
          at_once, expected / kGiB, available / kGiB, options_.device.str(),
          std::max<int64_t>(1, fits));
    }
    if (!options_.quiet) {
      fmt::print(stderr, "a step is expected to take {:.1f} of {:.1f} GiB\n", expected / kGiB,
                 available / kGiB);
    }
  }

  // Reads the losses back, looks for the first that is not sound, and writes their means.
  std::optional<Divergence> log() {
    if (pending_ == 0) return {};
    const auto rows = recent_.slice(0, 0, pending_);
    ranks_.mean(rows);
    const auto& names = method_->loss_names();
    const auto values = rows.slice(1, 0, losses_.numel()).to(torch::kCPU, torch::kDouble);
    const auto cell = values.accessor<double, 2>();
    for (int64_t i = 0; i < values.size(0); ++i) {
      for (int64_t k = 0; k < values.size(1); ++k) {
        const double value = cell[i][k];
        if (std::isfinite(value) && std::abs(value) < settings_.train.divergence_limit) continue;
        return Divergence{
            next_ - pending_ + i + 1,
            fmt::format("loss '{}' is {}{}", names[static_cast<size_t>(k)], value,
                        std::isfinite(value) ? fmt::format(", beyond train.divergence_limit = {}",
                                                           settings_.train.divergence_limit)
                                             : "")};
      }
    }
    pending_ = 0;
    if (!ranks_.first()) return {};
    const auto mean = values.mean(0);
    Json line;
    line["iteration"] = next_;
    for (size_t k = 0; k < names.size(); ++k) {
      line[names[k]] = mean[static_cast<int64_t>(k)].item<double>();
    }
    line["lr"] =
        facts_.rate * settings_.train.optimizer.rate(next_ - 1, settings_.train.iterations);
    add_progress(line);
    append_line(folder_.metrics(), line);
    if (EventFile* file = events()) add_scalars(*file, "training", line);
    note_.clear();
    for (size_t k = 0; k < std::min<size_t>(2, names.size()); ++k) {
      note_ += fmt::format("{}{} {:.3g}", k > 0 ? "  " : "", names[k],
                           mean[static_cast<int64_t>(k)].item<double>());
    }
    return {};
  }

  // The last update may have spoilt what no loss has seen yet.
  std::optional<Divergence> check_state() const {
    for (const auto& [name, tensor] : optimizer_->state()) {
      if (!tensor.isfinite().all().item<bool>()) {
        return Divergence{next_, fmt::format("tensor '{}' is not finite", name)};
      }
    }
    return {};
  }

  // That the run has taken, over all its parts.
  double seconds() const {
    const std::chrono::duration<double> since = std::chrono::steady_clock::now() - start_;
    return seconds_before_ + since.count();
  }

  void add_progress(Json& line) const {
    if (source_->event().size() == 3) line["images"] = next_ * settings_.train.batch;
    line["seconds"] = seconds();
  }

  // What TensorBoard reads, opened when there is something to say; null where it is not wanted.
  EventFile* events() {
    if (!settings_.train.tensorboard) return nullptr;
    if (!events_) events_.emplace(folder_.path, resumed_at_ + 1);
    return &*events_;
  }

  // Every number of a line of metrics.jsonl.
  void add_scalars(EventFile& file, const std::string& group, const Json& line) const {
    for (const auto& [name, value] : line.items()) {
      if (name == "iteration" || !value.is_number()) continue;
      file.scalar(fmt::format("{}/{}", group, name), next_, value);
    }
  }

  // Returns whether it was the best so far.
  bool evaluate_now() {
    const Optimizer::UseAverages averages(*optimizer_);
    Model model(*method_, units_, tensors_);
    if (!options_.quiet && source_->event().size() == 3) {
      model.progress = late_progress("evaluation");
    }
    const Evaluation result =
        evaluate(model, *source_, settings_.data,
                 {static_cast<uint64_t>(settings_.seed), settings_.train.evaluation_samples,
                  options_.device, folder_.path});
    numbers_ = result.numbers;
    Json line;
    line["iteration"] = next_;
    for (const auto& [name, value] : numbers_) line[name] = value;
    add_progress(line);
    append_line(folder_.metrics(), line);
    write_file(folder_.evaluation(), line.dump(2) + "\n");
    if (result.picture.defined()) write_png(folder_.path / result.picture_name, result.picture);
    if (EventFile* file = events()) {
      add_scalars(*file, "evaluation", line);
      for (const auto& set : result.scores) file->histogram("score/" + set.name, next_, set.values);
      if (result.picture.defined()) file->picture(result.picture_name, next_, result.picture);
    }
    const auto now = quality(numbers_);
    if (!now) return false;
    writer_.wait();
    const auto before = folder_.best();
    // What a resumed run does again is no rival.
    const bool rival = before && before->metric == now->first && before->iteration < next_;
    if (rival && before->value <= now->second) return false;
    // Before its checkpoint: a run that is killed in between makes both again.
    folder_.set_best({next_, now->first, now->second});
    return true;
  }

  RunSettings& settings_;
  const TrainOptions& options_;
  const Ranks& ranks_;
  RunFolder folder_;
  std::optional<FolderLock> lock_;
  torch::TensorOptions tensors_;
  int64_t batch_;  // of this rank
  std::unique_ptr<DataSource> source_;
  Units units_;
  Random random_;
  std::unique_ptr<Method> method_;
  std::unique_ptr<Optimizer> optimizer_;
  torch::Tensor progress_;
  torch::Tensor noted_, losses_;  // of an iteration: losses and the players' gradient norms
  torch::Tensor recent_;          // [log_every, noted], rows up to pending_ not yet logged
  std::optional<Units> exact_;    // none: data and model have the same
  std::unique_ptr<RepeatedStep> step_;
  std::unique_ptr<Progress> bar_;
  std::optional<EventFile> events_;
  bool finished_ = false;
  int64_t pending_ = 0;
  int64_t next_ = 0;  // iterations done
  int64_t resumed_at_ = 0;
  double seconds_before_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string note_;
  std::vector<std::pair<std::string, double>> numbers_;
  CheckpointFacts facts_;    // of the next checkpoint
  CheckpointWriter writer_;  // last: it must be done before anything else goes
};

// Calls f; a device that has no memory left is an Error that says what to change.
template <class F>
void with_memory(const torch::Device& device, const F& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    if (what.find("out of memory") == std::string::npos) throw;
    fail(
        "{} has no memory left for this; lower train.batch, or set train.micro_batch to a part of "
        "it, or image_net.precision=\"bf16\"",
        device.str());
  }
}

}  // namespace

TrainResult train(RunSettings& settings, const TrainOptions& options,
                  const std::atomic<int>& stop) {
  TrainResult result;
  const auto ranks = options.place ? std::make_unique<Ranks>(*options.place, options.device)
                                   : std::make_unique<Ranks>();
  try {
    with_memory(options.device, [&] {
      Training training(settings, options, *ranks);
      training.begin();
      while (training.advance(stop)) {
      }
      ranks->part();
      result = training.result();
    });
  } catch (const RankLost&) {
    throw;
  } catch (const std::exception& error) {
    ranks->fail_with(error.what());
    throw;
  }
  return result;
}

namespace {

// One of several seeds, with what its Training refers to.
struct Seed {
  Seed(RunSettings& common, const TrainOptions& given, int64_t number)
      : settings(common.copy()), options(given), lane(given.device) {
    settings.seed = common.seed + number;
    options.folder /= fmt::format("seed-{}", settings.seed);
    options.quiet = true;
  }
  RunSettings settings;
  TrainOptions options;
  Lane lane;
  std::unique_ptr<Training> training;
  bool active = true;
};

}  // namespace

std::vector<SeedNumber> summary(const std::map<std::string, std::vector<double>>& values,
                                size_t seeds) {
  std::vector<SeedNumber> numbers;
  const auto n = static_cast<double>(seeds);
  for (const auto& [name, of_seeds] : values) {
    if (of_seeds.size() != seeds) continue;
    SeedNumber number{name};
    for (const double value : of_seeds) number.mean += value / n;
    double squares = 0;
    for (const double value : of_seeds) squares += std::pow(value - number.mean, 2);
    if (seeds > 1) number.deviation = std::sqrt(squares / (n - 1));
    numbers.push_back(number);
  }
  return numbers;
}

SeedsResult train_seeds(RunSettings& settings, const TrainOptions& options, int64_t count,
                        const std::atomic<int>& stop) {
  const Ranks alone;
  std::vector<std::unique_ptr<Seed>> seeds;
  SeedsResult result;
  // Runs f for a seed in its lane; an Error of one seed ends that seed alone.
  const auto attend = [&](Seed& seed, const auto& f) {
    try {
      with_memory(options.device, [&] { seed.lane.run([&] { f(); }); });
    } catch (const Error& error) {
      seed.active = false;
      result.failures.push_back(fmt::format("seed {}: {}", seed.settings.seed, error.what()));
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    seeds.push_back(std::make_unique<Seed>(settings, options, i));
    Seed& seed = *seeds.back();
    with_memory(options.device, [&] {
      seed.lane.run([&] {
        seed.training =
            std::make_unique<Training>(seed.settings, seed.options, alone, Random::Generator::own);
        seed.training->begin();
      });
    });
  }
  std::optional<Progress> bar;
  const auto done = [&] {
    int64_t sum = 0;
    for (const auto& seed : seeds) sum += seed->training->done();
    return sum;
  };
  if (!options.quiet) {
    bar.emplace(fmt::format("{}, {} seeds", settings.data.name, count),
                count * settings.train.iterations, done());
  }
  for (bool more = true; more;) {
    more = false;
    for (const auto& seed : seeds) {
      if (!seed->active) continue;
      attend(*seed, [&] { seed->active = seed->training->advance(stop); });
      more = more || seed->active;
    }
    if (bar) bar->update(done());
  }
  std::map<std::string, std::vector<double>> values;
  Json together;
  size_t finished = 0;
  for (const auto& seed : seeds) {
    const TrainResult of_seed = seed->training->result();
    if (!of_seed.finished) continue;
    ++finished;
    together["seeds"].push_back(seed->settings.seed);
    for (const auto& [name, value] : of_seed.numbers) {
      values[name].push_back(value);
      together["values"][name].push_back(value);
    }
  }
  result.finished = finished + result.failures.size() == seeds.size();
  result.numbers = summary(values, finished);
  for (const auto& number : result.numbers) {
    together["mean"][number.name] = number.mean;
    together["deviation"][number.name] = number.deviation;
  }
  if (finished > 0) write_file(options.folder / "seeds.json", together.dump(2) + "\n");
  return result;
}

}  // namespace ddaebm
