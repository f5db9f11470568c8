#include "ddaebm/methods/method.h"

#include <map>

#include "ddaebm/error.h"
#include "ddaebm/methods/bidvl.h"
#include "ddaebm/methods/coopnets.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/methods/meg.h"
#include "ddaebm/methods/vera.h"

namespace ddaebm {

std::unique_ptr<MethodSettings> method_settings(const std::string& name) {
  static const std::map<std::string, std::unique_ptr<MethodSettings> (*)()> methods = {
      {"bidvl", bidvl_settings}, {"coopnets", coopnets_settings}, {"ddaebm", ddaebm_settings},
      {"meg", meg_settings},     {"vera", vera_settings},         {"wgan0gp", wgan0gp_settings},
  };
  const auto found = methods.find(name);
  if (found == methods.end()) {
    std::vector<std::string> known;
    for (const auto& [key, make] : methods) known.push_back(key);
    fail("method '{}' is unknown; known: {}", name, fmt::join(known, ", "));
  }
  return found->second();
}

}  // namespace ddaebm
