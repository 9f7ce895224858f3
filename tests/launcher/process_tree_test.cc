// The end of a tree of processes, at whatever moment its inner ones die by themselves.
#include "launcher/processes/process_tree.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "collectives/base/unique_fd.h"

namespace rueda::launcher {
namespace {

// A child with a child of its own in another session. Both hold `alive`; the child lives until
// `leave` is closed.
void start_family(int leave, int other_end) {
  if (fork() != 0) return;
  close(other_end);
  if (fork() == 0) {
    setsid();
    for (;;) pause();
  }
  char byte = 0;
  while (read(leave, &byte, 1) > 0) {
  }
  _exit(0);
}

TEST_CASE("whoever is inherited while the tree is killed is killed, too", "[process_tree]") {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t child_ended, before;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child_ended, &before);
  for (int round = 0; round < 60; ++round) {
    INFO("round " << round);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    for (int family = 0; family < 3; ++family) start_family(ends[0], ends[1]);
    while (children_of(getpid()).size() < 3) {
    }
    // They die while we look for them: some have been reaped before what they leave has become
    // ours.
    close(ends[1]);
    CHECK(kill_children({}, std::chrono::seconds(60)).empty());
    close(ends[0]);
    CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
    REQUIRE(errno == ECHILD);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace rueda::launcher
