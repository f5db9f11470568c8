#include "ddaebm/data/toy.h"

#include <algorithm>

#include "ddaebm/data/toy_parts.h"
#include "ddaebm/error.h"

namespace ddaebm {
namespace {

struct Entry {
  ToyInfo info;
  std::unique_ptr<Toy> (*make)();
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {{"25gaussians", "25 small Gaussians on a 5 x 5 grid"}, toy::make_25gaussians},
      {{"8gaussians", "8 Gaussians on a circle"}, toy::make_8gaussians},
      {{"pinwheel", "5 Gaussian arms, twisted"}, toy::make_pinwheel},
      {{"swissroll", "one and a half turns of a blurred spiral"}, toy::make_swissroll},
      {{"2spirals", "two interleaved spirals of one and a half turns"}, toy::make_2spirals},
      {{"checkerboard", "uniform on 8 of the 16 squares of a board"}, toy::make_checkerboard},
      {{"moons", "two interleaved half circles"}, toy::make_moons},
      {{"circles", "two thick concentric circles"}, toy::make_circles},
      {{"rings", "four thin concentric circles"}, toy::make_rings},
  };
  return all;
}

const Entry* find(const std::string& name) {
  const auto& all = entries();
  auto entry =
      std::find_if(all.begin(), all.end(), [&](const Entry& e) { return e.info.name == name; });
  return entry == all.end() ? nullptr : &*entry;
}

}  // namespace

const std::vector<ToyInfo>& toy_list() {
  static const std::vector<ToyInfo> list = [] {
    std::vector<ToyInfo> infos;
    for (const auto& entry : entries()) infos.push_back(entry.info);
    return infos;
  }();
  return list;
}

std::unique_ptr<Toy> make_toy(const std::string& name) {
  if (const Entry* entry = find(name)) return entry->make();
  std::string known;
  for (const auto& info : toy_list()) known += (known.empty() ? "" : ", ") + info.name;
  fail("there is no toy data set '{}'; the known ones are {}", name, known);
}

bool is_toy(const std::string& name) { return find(name) != nullptr; }

}  // namespace ddaebm
