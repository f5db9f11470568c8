#pragma once

#include <string>
#include <vector>

#include <torch/types.h>

// What pages and figures share.
namespace ddaebm {

// Text as HTML and XML want it.
std::string escape(const std::string& text);
std::string base64(const std::string& bytes);

// Pictures under a label; an undefined one leaves its place empty.
struct FigureColumn {
  std::string label;
  std::vector<torch::Tensor> pictures;  // uint8 [H, W, 3], from the top
};
// The columns side by side as SVG text that holds its pictures, each `panel` units wide.
std::string figure(const std::vector<FigureColumn>& columns, int64_t panel = 160);

}  // namespace ddaebm
