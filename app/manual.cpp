#include "app/commands.h"

#include <fmt/format.h>

namespace ddaebm::app {
namespace {

// Text as roff shows it: a backslash and a minus mean more there, and so does a dot that begins a
// line.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

std::string option_text(const CLI::Option& option) {
  std::string names;
  const auto add = [&](const std::string& name) {
    names += (names.empty() ? "" : ", ") + fmt::format("\\fB{}\\fR", roff(name));
  };
  for (const auto& name : option.get_snames()) add("-" + name);
  for (const auto& name : option.get_lnames()) add("--" + name);
  if (names.empty()) add(option.get_name(/*positional=*/true));
  if (option.nonpositional() && option.get_items_expected_max() > 0) {
    names += fmt::format(" \\fI{}\\fR", roff(option.get_type_name()));
  }
  std::string meaning = roff(option.get_description());
  if (!option.get_default_str().empty()) {
    meaning += roff(fmt::format(" (default {})", option.get_default_str()));
  }
  return fmt::format(".TP\n{}\n{}\n", names, meaning);
}

// A section for each command, and for commands within it.
std::string command_text(const CLI::App& command, const std::string& path) {
  std::string positionals, options;
  for (const auto* option : command.get_options()) {
    if (!option->nonpositional()) positionals += " " + option->get_name(/*positional=*/true);
    options += option_text(*option);
  }
  std::string text = fmt::format(".SS {}\n{}\n{}", roff(path + positionals),
                                 roff(command.get_description()), options);
  if (!command.get_footer().empty()) {
    text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.get_footer()));
  }
  for (const auto* inner : command.get_subcommands(nullptr)) {
    text += command_text(*inner, path + " " + inner->get_name());
  }
  return text;
}

std::string manual(const CLI::App& app) {
  std::string commands;
  for (const auto* command : app.get_subcommands(nullptr)) {
    if (!command->get_group().empty()) {
      commands += command_text(*command, "ddaebm " + command->get_name());
    }
  }
  return fmt::format(
      R"(.TH DDAEBM 1 "" "ddaebm {}" "User Commands"
.SH NAME
ddaebm \- train, sample and score diffusion adversarial energy\-based models
.SH SYNOPSIS
.B ddaebm
\fICOMMAND\fR [\fIARGUMENTS\fR]
.PP
.B ddaebm
\fB\-\-help\fR | \fB\-\-version\fR
.SH DESCRIPTION
One training run gives two things: a generator that draws a sample in four network evaluations,
and an energy that says how likely any input is. Each command has a \fB\-\-help\fR of its own.
.SH COMMANDS
{}.SH FILES
A run folder holds \fIconfig.toml\fR, \fImetrics.jsonl\fR, checkpoints (safetensors),
\fIevaluation.json\fR, \fIdensity.png\fR or \fIsamples.png\fR, and \fIreport.html\fR.
.SH ENVIRONMENT
.TP
\fBDDAEBM_DATA\fR
Folder of image sets; else \fI~/.cache/ddaebm\fR.
.TP
\fBDDAEBM_PRESETS\fR
Folder of presets, in place of those that came with the program.
.TP
\fBOMP_NUM_THREADS\fR
Threads on a CPU; else as many as cores, at most four.
.SH EXIT STATUS
0: done. 2: something that a user can mend, said in one line. 1: a bug. 128 + N: stopped by signal N,
after a checkpoint.
)",
      DDAEBM_VERSION, commands);
}

}  // namespace

void add_manual(CLI::App& app) {
  auto* command = app.add_subcommand("manual", "The manual page, as roff");
  command->group("");  // not shown: for packages
  command->footer("Example:\n  ddaebm manual | man -l -");
  command->callback([&app] { fmt::print("{}", manual(app)); });
}

}  // namespace ddaebm::app
