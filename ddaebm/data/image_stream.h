#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "ddaebm/data/images.h"
#include "ddaebm/data/workers.h"

namespace ddaebm {

// Batches of pictures from disk, decoded by worker threads ahead of time. The joined batch of a
// step is a function of seed and step alone: any step may be asked for, the next one is quick.
class ImageStream {
 public:
  // Of `files` those that `which` lists, by chance; all of them in their own order where it is
  // empty, those of config.lanes side by side. Each is [3, H, W] = `shape` once framed; pinned
  // batches copy to a GPU without waiting.
  ImageStream(std::shared_ptr<const ImageFiles> files, std::vector<int64_t> which,
              const DataConfig& config, std::vector<int64_t> shape, uint64_t seed, Share share,
              bool pinned, ReadHooks hooks);
  ~ImageStream();

  // uint8 [n, 3, H, W]. A picture that does not decode is named in a warning, once, and another
  // takes its place; an Error as in load_images.
  torch::Tensor take(int64_t step, int64_t n);

 private:
  struct Batch {
    int64_t step = 0;
    torch::Tensor pixels;
    int64_t next = 0, done = 0;  // pictures given to a worker, and finished
  };

  void work();
  void fill(const Batch& batch, int64_t slot);
  // The picture for a slot of a step's joined batch of n.
  int64_t in_order(int64_t step, int64_t slot, int64_t n) const;
  // Throws where there are too many.
  void note_failure(int64_t image, const std::string& reason);

  std::shared_ptr<const ImageFiles> files_;
  std::vector<int64_t> which_;
  DataConfig config_;
  std::vector<int64_t> shape_;
  uint64_t seed_;
  Share share_;
  bool pinned_;
  ReadHooks hooks_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_to_do_, batch_done_;
  std::map<int64_t, std::shared_ptr<Batch>> window_;  // by step
  int64_t n_ = 0;
  bool stop_ = false;
  std::set<int64_t> failed_;
  std::vector<std::string> warnings_;
  std::exception_ptr error_;

  std::unique_ptr<Workers> workers_;
};

}  // namespace ddaebm
