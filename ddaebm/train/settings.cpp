#include "ddaebm/train/settings.h"

namespace ddaebm {

RunSettings::RunSettings(const ConfigFile& file)
    : method(file.text("method", "ddaebm")), method_settings(ddaebm::method_settings(method)) {
  file.fill(fields());
}

Fields RunSettings::fields() {
  Fields f;
  f("method", method, "how the model is trained");
  f("seed", seed, at_least(0), "fixes every random number of the run");
  f.section("data", data);
  f.section("train", train);
  f.section("ranks", ranks);
  method_settings->visit(f);
  return f;
}

std::string RunSettings::to_toml() { return ddaebm::to_toml(fields()); }

RunSettings RunSettings::copy() { return RunSettings(ConfigFile::parse(to_toml(), "settings")); }

}  // namespace ddaebm
