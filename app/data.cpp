#include "app/commands.h"

#include <fmt/format.h>

#include "ddaebm/data/toy.h"

namespace ddaebm::app {

void add_data(CLI::App& app) {
  auto* command = app.add_subcommand("data", "Data sets");
  command->require_subcommand(1);
  auto* list = command->add_subcommand("list", "The built-in sets and the files that can be read");
  list->callback([] {
    for (const auto& toy : toy_list()) fmt::print("{:<14} {}\n", toy.name, toy.description);
    fmt::print("{:<14} {}\n", "FILE.csv", "numbers, one row a line; comma, semicolon or tab");
    fmt::print("{:<14} {}\n", "FILE.npy", "an array of rows and columns; .npz with one array too");
  });
  command->footer("Example:\n  ddaebm data list");
}

}  // namespace ddaebm::app
