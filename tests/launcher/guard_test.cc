// What the guard does when its child is killed: the next one is told of what has come before.
#include "launcher/processes/guard.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "launcher/job/exit_report.h"

namespace rueda::launcher {
namespace {

// A guard in a process of its own, and a pipe that its children write numbers to.
class Guarded {
 public:
  using Work = std::function<int(int begun, const GuardLink&, int out)>;
  Guarded(const Work& work, std::optional<int> over) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    in_.reset(ends[0]);
    UniqueFd out(ends[1]);
    pid_ = fork();
    if (pid_ != 0) return;
    int begun = 0;
    GuardedAgain again;
    again.before_each = [&] { ++begun; };
    again.again = [&] { return begun < 2; };
    again.over = [&] { return over; };
    _exit(guard(
        "worker", [&](const GuardLink& link) { return work(begun, link, out.get()); },
        GuardedGroup::kOwn, again));
  }
  int read_number() {
    int number = -1;
    return read(in_.get(), &number, sizeof(number)) == sizeof(number) ? number : -1;
  }
  void ask_to_stop() const { kill(pid_, SIGTERM); }
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return exit_code_of(status);
  }

 private:
  UniqueFd in_;
  pid_t pid_ = -1;
};

void tell(int out, int number) {
  if (write(out, &number, sizeof(number)) != sizeof(number)) _exit(99);
}

TEST_CASE("who comes after a child that was killed knows how often its end was asked for") {
  Guarded guarded(
      [](int begun, const GuardLink& link, int out) {
        if (begun == 2) {
          for (const int signal : link.asked) tell(out, signal);
          return static_cast<int>(link.asked.size());
        }
        sigset_t wanted;
        sigemptyset(&wanted);
        sigaddset(&wanted, SIGTERM);
        for (int i = 0, signal = 0; i < 2; ++i) {
          tell(out, i);
          sigwait(&wanted, &signal);
        }
        return raise(SIGKILL);
      },
      std::nullopt);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(guarded.read_number() == i);
    guarded.ask_to_stop();
  }
  CHECK(guarded.read_number() == SIGTERM);
  CHECK(guarded.read_number() == SIGTERM);
  CHECK(guarded.wait() == 2);
}

TEST_CASE("nobody comes after a child whose work was over, and its exit code is that of the work") {
  const Guarded guarded([](int, const GuardLink&, int) { return raise(SIGKILL); }, 3);
  CHECK(guarded.wait() == 3);
}

}  // namespace
}  // namespace rueda::launcher
