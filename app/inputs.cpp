#include "app/inputs.h"

#include "ddaebm/data/images.h"
#include "ddaebm/data/logit_source.h"
#include "ddaebm/error.h"

namespace ddaebm::app {
namespace {

// uint8 [N, C, H, W].
torch::Tensor read_pictures(const std::string& name, const DataConfig& trained, int64_t size,
                            const InputOptions& options) {
  DataConfig data;
  data.name = name;
  data.root = trained.root;
  data.size = size;
  if (name == trained.name) data.crop = trained.crop;
  const Split split = options.split == "train" ? Split::train : Split::test;
  auto set = open_images(data, split, {});
  if (!set) set = open_images(data, Split::train, {});
  if (!set) fail("{}: no images", name);
  return load_images(*set, first_indices(set->size(), options.limit), data, {}).pixels;
}

}  // namespace

torch::Tensor read_inputs(const std::string& data, const Model& model, const DataConfig& trained,
                          const InputOptions& options) {
  const auto& event = model.event();
  Random random(torch::kCPU, options.seed);
  torch::Tensor rows;
  if (is_toy(data)) {
    rows = make_toy(data)->sample(options.draws, random);
  } else if (event.size() == 3) {
    auto pixels = read_pictures(data, trained, event.at(1), options);
    if (pixels.size(1) == 1 && event.at(0) == 3) pixels = pixels.expand({-1, 3, -1, -1});
    return scaled(pixels);
  } else if (trained.logit && is_image_data(data)) {
    const auto levels = read_pictures(data, trained, trained.size, options).flatten(1);
    rows = to_logits(levels, random.uniform(levels.sizes(), torch::kDouble));
  } else {
    rows = read_rows(data);
    if (options.limit > 0) rows = rows.slice(0, 0, options.limit);
  }
  if (event.size() == 1 && rows.size(1) != event.at(0)) {
    fail("{}: {} columns, the model was trained on {}", data, rows.size(1), event.at(0));
  }
  return rows;
}

torch::Tensor read_reference(const std::string& data, const Model& model, const DataConfig& trained,
                             uint64_t seed, int64_t most) {
  return read_inputs(data, model, trained, {"train", most, most, seed});
}

}  // namespace ddaebm::app
