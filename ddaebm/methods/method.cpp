#include "ddaebm/methods/method.h"

#include <map>

#include "ddaebm/error.h"
#include "ddaebm/methods/bidvl.h"
#include "ddaebm/methods/coopnets.h"
#include "ddaebm/methods/ddaebm.h"
#include "ddaebm/methods/ddgan.h"
#include "ddaebm/methods/drl.h"
#include "ddaebm/methods/dsm.h"
#include "ddaebm/methods/ebmbb.h"
#include "ddaebm/methods/fce.h"
#include "ddaebm/methods/meg.h"
#include "ddaebm/methods/mle.h"
#include "ddaebm/methods/scoreflow.h"
#include "ddaebm/methods/ssm.h"
#include "ddaebm/methods/vera.h"

namespace ddaebm {

int64_t vector_dimension(const std::vector<int64_t>& event) {
  if (event.size() != 1) {
    fail("data of shape [{}]: this method is for vectors [D]; choose other data, or method ddaebm",
         fmt::join(event, ", "));
  }
  return event[0];
}

namespace {

std::map<std::string, MakeSettings>& known_methods() {
  static std::map<std::string, MakeSettings> methods = {
      {"bidvl", bidvl_settings},
      {"coopnets", coopnets_settings},
      {"ddaebm", ddaebm_settings},
      {"ddgan", ddgan_settings},
      {"drl", drl_settings},
      {"dsm", dsm_settings},
      {"ebmbb", ebmbb_settings},
      {"fce", fce_settings},
      {"meg", meg_settings},
      {"mle", mle_settings},
      {"scoreflow", scoreflow_settings},
      {"ssm", ssm_settings},
      {"vera", vera_settings},
      {"wgan0gp", wgan0gp_settings},
  };
  return methods;
}

}  // namespace

void add_method(const std::string& name, MakeSettings make) {
  if (!known_methods().emplace(name, make).second) fail("method '{}' is known already", name);
}

std::unique_ptr<MethodSettings> method_settings(const std::string& name) {
  const auto& methods = known_methods();
  const auto found = methods.find(name);
  if (found == methods.end()) {
    std::vector<std::string> known;
    for (const auto& [key, make] : methods) known.push_back(key);
    fail("method '{}' is unknown; known: {}", name, fmt::join(known, ", "));
  }
  return found->second();
}

}  // namespace ddaebm
