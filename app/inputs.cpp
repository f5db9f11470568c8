#include "app/inputs.h"

#include "ddaebm/data/images.h"
#include "ddaebm/error.h"

namespace ddaebm::app {
namespace {

torch::Tensor read_pictures(const std::string& name, const std::vector<int64_t>& event,
                            const InputOptions& options) {
  DataConfig data;
  data.name = name;
  data.size = event.at(1);
  const Split split = options.split == "train" ? Split::train : Split::test;
  auto set = open_images(data, split, {});
  if (!set) set = open_images(data, Split::train, {});
  if (!set) fail("{}: no images", name);
  auto pixels = load_images(*set, first_indices(set->size(), options.limit), data, {}).pixels;
  if (pixels.size(1) == 1 && event.at(0) == 3) pixels = pixels.expand({-1, 3, -1, -1});
  return scaled(pixels);
}

}  // namespace

torch::Tensor read_inputs(const std::string& data, const Model& model,
                          const InputOptions& options) {
  const auto& event = model.event();
  torch::Tensor rows;
  if (is_toy(data)) {
    Random random(torch::kCPU, options.seed);
    rows = make_toy(data)->sample(options.draws, random);
  } else if (event.size() == 3) {
    return read_pictures(data, event, options);
  } else {
    rows = read_rows(data);
    if (options.limit > 0) rows = rows.slice(0, 0, options.limit);
  }
  if (event.size() == 1 && rows.size(1) != event.at(0)) {
    fail("{}: {} columns, the model was trained on {}", data, rows.size(1), event.at(0));
  }
  return rows;
}

}  // namespace ddaebm::app
