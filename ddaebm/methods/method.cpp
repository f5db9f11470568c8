#include "ddaebm/methods/method.h"

#include <map>

#include "ddaebm/error.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/methods/ddgan.h"
#include "ddaebm/methods/drl.h"
#include "ddaebm/methods/ebmbb.h"

namespace ddaebm {

std::unique_ptr<MethodSettings> method_settings(const std::string& name) {
  static const std::map<std::string, std::unique_ptr<MethodSettings> (*)()> methods = {
      {"ddaebm", ddaebm_settings},
      {"ddgan", ddgan_settings},
      {"drl", drl_settings},
      {"ebmbb", ebmbb_settings},
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
