#include "ddaebm/data/image_stream.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "ddaebm/error.h"

namespace ddaebm {
namespace {

constexpr int64_t kAhead = 8;  // batches decoded or in the making
constexpr int64_t kAheadBytes = int64_t{1} << 30;

}  // namespace

ImageStream::ImageStream(std::shared_ptr<const ImageFiles> files, std::vector<int64_t> which,
                         const DataConfig& config, std::vector<int64_t> shape, uint64_t seed,
                         Share share, bool pinned, ReadHooks hooks)
    : files_(std::move(files)),
      which_(std::move(which)),
      config_(config),
      shape_(std::move(shape)),
      seed_(seed),
      share_(share),
      pinned_(pinned),
      hooks_(std::move(hooks)),
      workers_(std::make_unique<Workers>(worker_count(), [this] { work(); })) {}

ImageStream::~ImageStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_to_do_.notify_all();
  workers_->join();
}

torch::Tensor ImageStream::take(int64_t step, int64_t n) {
  std::vector<int64_t> shape = {n};
  shape.insert(shape.end(), shape_.begin(), shape_.end());
  const int64_t bytes = n * shape_[0] * shape_[1] * shape_[2];
  const int64_t ahead = std::clamp<int64_t>(kAheadBytes / bytes, 2, kAhead);

  std::unique_lock lock(mutex_);
  // A jump, as at a resumed run's start: workers may still finish pictures of what is dropped here.
  if (n != n_ || !window_.contains(step)) window_.clear();
  n_ = n;
  window_.erase(window_.begin(), window_.find(step));
  for (int64_t s = step; s < step + ahead; ++s) {
    auto& batch = window_[s];
    if (batch) continue;
    const auto options = torch::TensorOptions(torch::kUInt8).pinned_memory(pinned_);
    batch = std::make_shared<Batch>(Batch{s, torch::empty(shape, options)});
  }
  work_to_do_.notify_all();
  const auto batch = window_.at(step);
  batch_done_.wait(lock, [&] { return error_ || batch->done == n; });
  const auto warnings = std::exchange(warnings_, {});
  const auto error = error_;
  window_.erase(step);
  lock.unlock();
  for (const auto& warning : warnings) hooks_.warn(warning);
  if (error) std::rethrow_exception(error);
  return batch->pixels;
}

void ImageStream::work() {
  const at::NoGradGuard no_grad;
  std::unique_lock lock(mutex_);
  while (true) {
    std::shared_ptr<Batch> batch;
    work_to_do_.wait(lock, [&] {
      for (const auto& [step, candidate] : window_) {
        if (candidate->next < n_) {
          batch = candidate;
          return true;
        }
      }
      return stop_;
    });
    if (stop_) return;
    const int64_t slot = batch->next++;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(*batch, slot);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    ++batch->done;
    if (error) error_ = error;
    batch_done_.notify_all();
  }
}

void ImageStream::fill(const Batch& batch, int64_t slot) {
  const uint64_t of_step = Random::mix(Random::mix(seed_ ^ Random::mix(Random::kTraining)) ^
                                       static_cast<uint64_t>(batch.step));
  const int64_t joined_slot = share_.rank * batch.pixels.size(0) + slot;
  uint64_t draw = Random::mix(of_step ^ static_cast<uint64_t>(joined_slot));
  const int64_t ordered =
      which_.empty() ? in_order(batch.step, joined_slot, share_.size * batch.pixels.size(0)) : 0;
  // A picture that does not decode makes way for the next draw; note_failure ends this in time.
  for (int64_t tries = 0;; draw = Random::mix(draw), ++tries) {
    const int64_t image = which_.empty() ? ordered + tries * config_.lanes
                                         : which_[Random::mix(draw) % which_.size()];
    const bool mirrored = config_.flip && (Random::mix(~draw) & 1U) != 0;
    try {
      const auto picture = load_picture(*files_, image, config_);
      if (picture.sizes() != at::IntArrayRef(shape_)) {
        throw WrongSize(fmt::format(
            "is {} x {} pixels, others are {} x {}; set data.size to scale all to one size",
            picture.size(2), picture.size(1), shape_[2], shape_[1]));
      }
      batch.pixels[slot].copy_(mirrored ? picture.flip(2) : picture);
      return;
    } catch (const WrongSize& error) {
      fail("{} {}", files_->name(image), error.what());
    } catch (const Error& error) {
      note_failure(image, error.what());
    }
  }
}

int64_t ImageStream::in_order(int64_t step, int64_t slot, int64_t n) const {
  // Slots lane * n / lanes up to the next lane's: neighbours, so that a rank needs few lanes.
  const int64_t lane = slot * config_.lanes / n;
  const auto first = [&](int64_t l) { return (l * n + config_.lanes - 1) / config_.lanes; };
  const int64_t a_step = first(lane + 1) - first(lane);
  return (step * a_step + slot - first(lane)) * config_.lanes + lane;
}

void ImageStream::note_failure(int64_t image, const std::string& reason) {
  const std::string text = fmt::format("{}: {}", files_->name(image), reason);
  const std::lock_guard lock(mutex_);
  if (stop_) fail("{}", text);
  if (!failed_.insert(image).second) return;
  const auto size = which_.empty() ? static_cast<size_t>(files_->size()) : which_.size();
  if (failed_.size() * 100 > size) {
    fail("{}: more than 1 % of {} images do not decode, such as {}; mend or remove them",
         config_.name, size, text);
  }
  warnings_.push_back(text + "; another takes its place");
}

}  // namespace ddaebm
