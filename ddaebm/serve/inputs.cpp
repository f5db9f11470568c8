#include "ddaebm/serve/inputs.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "ddaebm/data/decode.h"
#include "ddaebm/data/images.h"
#include "ddaebm/data/logit_source.h"
#include "ddaebm/error.h"
#include "ddaebm/io/npy.h"

namespace ddaebm::serve {
namespace {

// Reads {"rows": [[1, 2], ...]} straight into numbers: no tree is built, and nothing but that gets
// past the second bracket.
class RowsReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit RowsReader(int64_t columns) : columns_(columns) {}

  torch::Tensor rows() const {
    return torch::tensor(numbers_, torch::kDouble).view({rows_ended_, columns_});
  }
  const std::string& problem() const { return problem_; }
  bool complete() const { return rows_seen_ && depth_ == 0; }

  bool number_integer(number_integer_t value) override { return add(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool key(string_t& name) override {
    if (name != "rows" || rows_seen_) return refuse("expected the key \"rows\", once, alone");
    return true;
  }
  bool start_object(size_t) override { return depth_++ == 0 || refuse("an object among the rows"); }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    // Within the object: the rows, then a row.
    if (depth_ == 0 || depth_ > 2) return refuse("brackets too deep, or too few");
    rows_seen_ = true;
    ++depth_;
    return true;
  }
  bool end_array() override {
    if (depth_-- != 3) return true;
    const auto found = static_cast<int64_t>(numbers_.size()) - rows_ended_++ * columns_;
    if (found == columns_) return true;
    return refuse(fmt::format("row {} has {} numbers", rows_ended_, found));
  }
  bool null() override { return refuse("null among the rows"); }
  bool boolean(bool) override { return refuse("true or false among the rows"); }
  bool string(string_t&) override { return refuse("text among the rows"); }
  bool binary(binary_t&) override { return refuse("binary among the rows"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return refuse(fmt::format("not JSON at byte {}", position));
  }

 private:
  bool add(double value) {
    if (depth_ != 3) return refuse("a number outside of the rows");
    if (!std::isfinite(value)) return refuse("a number beyond float64");
    numbers_.push_back(value);
    return true;
  }
  bool refuse(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
    return false;
  }

  int64_t columns_;
  std::vector<double> numbers_;
  std::string problem_;
  int depth_ = 0;  // 1: in the object, 2: among the rows, 3: in a row
  int64_t rows_ended_ = 0;
  bool rows_seen_ = false;
};

}  // namespace

Inputs::Inputs(std::vector<int64_t> event, const DataConfig& data)
    : event_(std::move(event)), data_(data) {
  for (const int64_t size : event_) numbers_ *= size;
  if (event_.size() == 3) {
    image_ = event_;
  } else if (data_.logit) {
    // Flattened images, square.
    for (const int64_t channels : {1, 3}) {
      const auto side = static_cast<int64_t>(std::lround(std::sqrt(numbers_ / channels)));
      if (channels * side * side == numbers_) image_ = {channels, side, side};
    }
  }
  if (!image_.empty()) data_.size = image_[1];
}

torch::Tensor Inputs::to_images(const torch::Tensor& data) const {
  if (event_.size() == 3) return to_bytes(data);
  std::vector<int64_t> shape = {data.size(0)};
  shape.insert(shape.end(), image_.begin(), image_.end());
  return (data.sigmoid() * 255.0).round().to(torch::kUInt8).view(shape);
}

torch::Tensor Inputs::from_pixels(torch::Tensor pixels) const {
  const int64_t channels = image_[0];
  if (pixels.size(1) == 3 && channels == 1) {
    // Grey as most programs weigh it; of a grey picture, itself.
    const auto weights = torch::tensor({0.299, 0.587, 0.114}, torch::kDouble).view({1, 3, 1, 1});
    pixels =
        (pixels.to(torch::kDouble) * weights).sum(1, /*keepdim=*/true).round().to(torch::kUInt8);
  }
  if (pixels.size(1) == 1 && channels == 3) pixels = pixels.expand({-1, 3, -1, -1});
  if (pixels.sizes().slice(1) != at::IntArrayRef(image_)) {
    fail("images of shape [{}], the model wants [{}]", fmt::join(pixels.sizes().slice(1), ", "),
         fmt::join(image_, ", "));
  }
  if (event_.size() == 3) return scaled(pixels).to(torch::kDouble);
  // The noise of logits is the same for each image, so that a score depends on the image alone.
  Random random(torch::kCPU, 0, Random::Generator::own);
  const auto levels = pixels.flatten(1);
  return to_logits(levels, random.uniform({1, levels.size(1)}, torch::kDouble).expand_as(levels));
}

torch::Tensor Inputs::parse(const std::string& body) const {
  torch::Tensor rows;
  if (body.empty()) fail("an empty body; send {{\"rows\": [[...]]}}, an .npy array or an image");
  if (is_encoded_image(body)) {
    if (image_.empty()) fail("an image, but the model was trained on rows of {} numbers", numbers_);
    rows = from_pixels(load_picture(body, data_).unsqueeze(0));
  } else if (body.starts_with("\x93NUMPY")) {
    const auto array = parse_npy("the body", body);
    if (array.scalar_type() == torch::kUInt8 && array.dim() == 4 && !image_.empty()) {
      rows = from_pixels(array);
    } else {
      std::vector<int64_t> wanted = {array.dim() > 0 ? array.size(0) : 0};
      wanted.insert(wanted.end(), event_.begin(), event_.end());
      const bool flat = array.dim() == 2 && array.size(1) == numbers_;
      if (!flat && array.sizes() != wanted) {
        fail("an array of shape [{}], the model wants [N, {}]", fmt::join(array.sizes(), ", "),
             fmt::join(event_, ", "));
      }
      rows = array.to(torch::kDouble).reshape(wanted);
    }
  } else {
    RowsReader reader(numbers_);
    if (!nlohmann::json::sax_parse(body, &reader) || !reader.complete()) {
      fail("{}; expected {{\"rows\": [[{} numbers], ...]}}, an .npy array{}",
           reader.problem().empty() ? "no rows" : reader.problem(), numbers_,
           image_.empty() ? "" : " or a PNG or JPEG image");
    }
    rows = reader.rows();
    std::vector<int64_t> shape = {rows.size(0)};
    shape.insert(shape.end(), event_.begin(), event_.end());
    rows = rows.view(shape);
  }
  if (rows.size(0) == 0) fail("no rows; send one at least");
  if (!rows.isfinite().all().item<bool>()) fail("NaN or infinity among the numbers");
  return rows.contiguous();
}

}  // namespace ddaebm::serve
