#include <algorithm>
#include <iterator>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"

namespace ddaebm::app {
namespace {

// Words that may follow, subcommand by subcommand, taken from the command line itself.
std::vector<std::string> words_of(const CLI::App& command) {
  std::vector<std::string> words;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) words.push_back("--" + name);
    for (const auto& name : option->get_snames()) words.push_back("-" + name);
  }
  for (const auto* inner : command.get_subcommands(nullptr)) words.push_back(inner->get_name());
  return words;
}

std::string bash(const CLI::App& app) {
  std::string cases;
  for (const auto* command : app.get_subcommands(nullptr)) {
    auto words = words_of(*command);
    if (command->get_name() == "train" || command->get_name() == "settings") {
      const auto presets = preset_names();
      words.insert(words.end(), presets.begin(), presets.end());
    }
    // Of `data get` and its like, whose own words follow.
    for (const auto* inner : command->get_subcommands(nullptr)) {
      const auto more = words_of(*inner);
      std::copy_if(more.begin(), more.end(), std::back_inserter(words), [&](const auto& word) {
        return std::find(words.begin(), words.end(), word) == words.end();
      });
    }
    if (command->get_name() == "data") {
      for (const auto& toy : toy_list()) words.emplace_back(toy.name);
      for (const auto& entry : image_catalogue()) words.push_back(entry.name);
    }
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), fmt::join(words, " "));
  }
  return fmt::format(
      "_ddaebm() {{\n"
      "  local words=\"{}\" current=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  if [ \"$COMP_CWORD\" -gt 1 ]; then case \"${{COMP_WORDS[1]}}\" in\n{}"
      "  esac; fi\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\") $(compgen -f -- \"$current\"))\n"
      "}}\n"
      "complete -o filenames -F _ddaebm ddaebm\n",
      fmt::join(words_of(app), " "), cases);
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>("bash");
  auto* command = app.add_subcommand("completion", "A script that completes this command line");
  command->add_option("SHELL", *shell, "bash or zsh")->capture_default_str();
  command->footer("Example:\n  eval \"$(ddaebm completion bash)\"");
  command->callback([shell, &app] {
    if (*shell != "bash" && *shell != "zsh") {
      fail("completion {}: expected bash or zsh", *shell);
    }
    // zsh understands bash's completions once asked to.
    if (*shell == "zsh") fmt::print("autoload -U +X bashcompinit && bashcompinit\n");
    fmt::print("{}", bash(app));
  });
}

}  // namespace ddaebm::app
