#include "ddaebm/data/cifar_python.h"

#include "ddaebm/error.h"
#include "ddaebm/io/pickle.h"

namespace ddaebm {
namespace {

constexpr int64_t kChannels = 3;
constexpr int64_t kSide = 32;
constexpr int64_t kPixels = kChannels * kSide * kSide;

}  // namespace

std::pair<torch::Tensor, torch::Tensor> read_cifar_python(const std::filesystem::path& path) {
  const PickleValue batch = read_pickle(path).value;
  const PickleValue* data = batch.find("data");
  const PickleValue* fine = batch.find("fine_labels");
  const PickleValue* labels = fine != nullptr ? fine : batch.find("labels");
  if (data == nullptr || labels == nullptr) {
    fail(
        "{}: expected a dict with 'data' and 'labels' (CIFAR-10) or 'fine_labels' (CIFAR-100); "
        "give data_batch_1, test_batch, train or test",
        path.string());
  }
  const torch::Tensor* rows = data->tensor();
  if (rows == nullptr || rows->scalar_type() != torch::kUInt8 || rows->dim() != 2 ||
      rows->size(1) != kPixels) {
    fail("{}: 'data' is not an array of bytes [N, {}]; download the batch again", path.string(),
         kPixels);
  }
  const int64_t count = rows->size(0);
  const auto* list = labels->list();
  if (list == nullptr || static_cast<int64_t>(list->size()) != count) {
    fail("{}: the labels are not a list of {} numbers; download the batch again", path.string(),
         count);
  }
  const int64_t classes = fine != nullptr ? 100 : 10;
  torch::Tensor numbers = torch::empty({count}, torch::kInt64);
  auto* to = numbers.data_ptr<int64_t>();
  for (const PickleValue& item : *list) {
    const auto label = item.integer();
    if (!label || *label < 0 || *label >= classes) {
      fail("{}: label {} is not one of 0 to {}; download the batch again", path.string(),
           to - numbers.data_ptr<int64_t>(), classes - 1);
    }
    *to++ = *label;
  }
  return {rows->reshape({count, kChannels, kSide, kSide}), numbers};
}

}  // namespace ddaebm
