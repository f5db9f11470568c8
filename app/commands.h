#pragma once

#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace ddaebm::app {

// One file a subcommand; each adds itself to the command line.
void add_train(CLI::App& app);
void add_sample(CLI::App& app);
void add_score(CLI::App& app);
void add_eval(CLI::App& app);
void add_compare(CLI::App& app);
void add_reproduce(CLI::App& app);
void add_ood(CLI::App& app);
void add_fid(CLI::App& app);
void add_serve(CLI::App& app);
void add_report(CLI::App& app);
void add_data(CLI::App& app);
void add_import(CLI::App& app);
void add_export(CLI::App& app);
void add_settings(CLI::App& app);
void add_check(CLI::App& app);
void add_completion(CLI::App& app);
void add_manual(CLI::App& app);

// One line an evaluation: "kl 0.91  js 0.021  hq 0.98".
void show_numbers(const std::vector<std::pair<std::string, double>>& numbers);

}  // namespace ddaebm::app
