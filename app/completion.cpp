#include <algorithm>
#include <memory>

#include "app/commands.h"
#include "app/presets.h"

#include <fmt/format.h>

#include "ddaebm/data/catalogue.h"
#include "ddaebm/data/toy.h"
#include "ddaebm/error.h"

namespace ddaebm::app {
namespace {

struct Word {
  std::string text, meaning;
};
using Words = std::vector<Word>;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Words that may follow a command, taken from the command line itself.
Words words_of(const CLI::App& command) {
  Words words;
  const auto add = [&](const std::string& text, const std::string& meaning) {
    const bool known =
        std::any_of(words.begin(), words.end(), [&](const Word& w) { return w.text == text; });
    if (!known) words.push_back({text, first_line(meaning)});
  };
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) add("--" + name, option->get_description());
    for (const auto& name : option->get_snames()) add("-" + name, option->get_description());
  }
  for (const auto* inner : command.get_subcommands(nullptr)) {
    if (inner->get_group().empty()) continue;  // hidden
    add(inner->get_name(), inner->get_description());
    // Of `data get` and its like, whose own words follow.
    if (command.get_parent() == nullptr) continue;
    for (const auto& word : words_of(*inner)) add(word.text, word.meaning);
  }
  const std::string& name = command.get_name();
  if (name == "train" || name == "settings") {
    for (const auto& preset : preset_names()) add(preset, preset_meaning(preset));
  }
  if (name == "data") {
    for (const auto& toy : toy_list()) add(toy.name, toy.description);
    for (const auto& entry : image_catalogue()) add(entry.name, entry.description);
  }
  return words;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// In single quotes, by which a text means itself.
std::string quoted(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

// "    train) words=... ;;" for each command, with its words as `list` shows them.
template <class List>
std::string cases(const CLI::App& app, const List& list) {
  std::string text;
  for (const auto* command : app.get_subcommands(nullptr)) {
    text += fmt::format("    {}) found={} ;;\n", command->get_name(), list(words_of(*command)));
  }
  return text;
}

std::string bash(const CLI::App& app) {
  const auto list = [](const Words& words) {
    std::string text;
    for (const auto& word : words) text += (text.empty() ? "" : " ") + word.text;
    return "\"" + text + "\"";
  };
  return fmt::format(
      "_ddaebm() {{\n"
      "  local found={} current=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  if [ \"$COMP_CWORD\" -gt 1 ]; then case \"${{COMP_WORDS[1]}}\" in\n{}"
      "  esac; fi\n"
      "  COMPREPLY=($(compgen -W \"$found\" -- \"$current\") $(compgen -f -- \"$current\"))\n"
      "}}\n"
      "complete -o filenames -F _ddaebm ddaebm\n",
      list(words_of(app)), cases(app, list));
}

std::string zsh(const CLI::App& app) {
  const auto list = [](const Words& words) {
    std::string text;
    for (const auto& word : words) {
      text += " " + quoted(replaced(word.text, ":", "\\:") + ":" + word.meaning);
    }
    return "(" + text + " )";
  };
  // It may be evaluated, or lie in a folder of functions: then its first call runs all of it.
  return fmt::format(
      "#compdef ddaebm\n"
      "_ddaebm() {{\n"
      "  local -a found\n"
      "  if (( CURRENT == 2 )); then found={}\n"
      "  else case $words[2] in\n{}"
      "  esac; fi\n"
      "  _describe ddaebm found\n"
      "  _files\n"
      "}}\n"
      "if [ \"$funcstack[1]\" = _ddaebm ]; then _ddaebm \"$@\"; else compdef _ddaebm ddaebm; fi\n",
      list(words_of(app)), cases(app, list));
}

std::string fish(const CLI::App& app) {
  std::string text;
  const auto add = [&](const std::string& condition, const Words& words) {
    for (const auto& [word, meaning] : words) {
      // -l of long options, -s of short ones, -a of what is no option.
      const bool is_long = word.starts_with("--");
      const bool is_short = !is_long && word.starts_with("-");
      text += fmt::format("complete -c ddaebm -n {} -{} {} -d {}\n", quoted(condition),
                          is_long ? 'l' : (is_short ? 's' : 'a'),
                          quoted(word.substr(is_long ? 2 : (is_short ? 1 : 0))), quoted(meaning));
    }
  };
  add("__fish_use_subcommand", words_of(app));
  for (const auto* command : app.get_subcommands(nullptr)) {
    if (command->get_group().empty()) continue;
    add("__fish_seen_subcommand_from " + command->get_name(), words_of(*command));
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>("bash");
  auto* command = app.add_subcommand("completion", "A script that completes this command line");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->capture_default_str();
  command->footer(
      "Examples:\n"
      "  eval \"$(ddaebm completion bash)\"\n"
      "  ddaebm completion fish > ~/.config/fish/completions/ddaebm.fish");
  command->callback([shell, &app] {
    if (*shell == "bash") {
      fmt::print("{}", bash(app));
    } else if (*shell == "zsh") {
      fmt::print("{}", zsh(app));
    } else if (*shell == "fish") {
      fmt::print("{}", fish(app));
    } else {
      fail("completion {}: expected bash, zsh or fish", *shell);
    }
  });
}

}  // namespace ddaebm::app
