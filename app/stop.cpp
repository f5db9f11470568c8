#include "app/stop.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace ddaebm::app {

std::atomic<int> stop_signal{0};

namespace {

void ask_to_stop(int signal) {
  if (stop_signal.exchange(signal) != 0) std::_Exit(128 + signal);
}

}  // namespace

void stop_on_signals() {
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
}

void exit_stopped() {
  std::fflush(nullptr);
  std::_Exit(128 + stop_signal);
}

}  // namespace ddaebm::app
