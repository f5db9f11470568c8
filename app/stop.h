#pragma once

#include <atomic>

namespace ddaebm::app {

// Zero until a signal asks the program to stop.
extern std::atomic<int> stop_signal;

// From now on the first SIGINT or SIGTERM asks to stop, which leaves a checkpoint; a second one
// ends at once.
void stop_on_signals();

// Ends the program as a signal would, without destructors that threads may be waiting in.
[[noreturn]] void exit_stopped();

}  // namespace ddaebm::app
