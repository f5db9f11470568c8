#pragma once

// All that a program needs to use trained runs and to train its own:
// - Model::load: a run folder, whose log_density scores and sample draws;
// - read_threshold and answer: what `ddaebm score` answers `in` or `out` by;
// - RunSettings and train: settings from TOML text, training into a run folder;
// - open_rows and DataSource: data of the program's own;
// - Method and add_method: a method of the program's own;
// - Error: what a user can mend, in one line.
#include "ddaebm/data/source.h"
#include "ddaebm/error.h"
#include "ddaebm/methods/method.h"
#include "ddaebm/train/model.h"
#include "ddaebm/train/ood.h"
#include "ddaebm/train/settings.h"
#include "ddaebm/train/trainer.h"
