#include "ddaebm/methods/method.h"

#include <map>

#include "ddaebm/error.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/methods/dsm.h"
#include "ddaebm/methods/fce.h"
#include "ddaebm/methods/mle.h"
#include "ddaebm/methods/scoreflow.h"
#include "ddaebm/methods/ssm.h"

namespace ddaebm {

std::unique_ptr<MethodSettings> method_settings(const std::string& name) {
  static const std::map<std::string, std::unique_ptr<MethodSettings> (*)()> methods = {
      {"ddaebm", ddaebm_settings},
      {"dsm", dsm_settings},
      {"fce", fce_settings},
      {"mle", mle_settings},
      {"scoreflow", scoreflow_settings},
      {"ssm", ssm_settings},
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
