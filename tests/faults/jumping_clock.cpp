// Preloaded into a program, lets the time of day jump a day forth and back at every few calls, as a
// clock does that is set while a run goes on. The steady clock goes on, as it must.
#include <atomic>
#include <ctime>

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

time_t jump() {
  static std::atomic<unsigned> calls{0};
  constexpr time_t kDay = 86400;
  return (calls++ / 3) % 2 == 0 ? kDay : -kDay;
}

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* at) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, at));
  if (result == 0 && clock == CLOCK_REALTIME) at->tv_sec += jump();
  return result;
}

extern "C" int gettimeofday(timeval* at, void* /*zone*/) noexcept {
  timespec now{};
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  *at = {now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

extern "C" time_t time(time_t* at) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (at != nullptr) *at = now.tv_sec;
  return now.tv_sec;
}
