// A rank for the failure tests. It sees rueda as users do: through rueda.h alone.
//
//   rank_program SCENE [name=value ...]
//
// Scenes of a death (rank `victim` ends by `how`, the others say what they were told and exit 1):
//   before_init   the victim never calls init
//   idle          all have met and nothing is under way
//   waiting       the others wait for a tensor that the victim does not submit
//   streaming     in allreduces of `mib` MiB each, `delay_us` after iteration `at` has begun
//   shutdown      the others are in rueda_shutdown
//   planned       persistent requests follow a step plan; the victim dies between two starts of a
//                 step, or, with delay_us, at any moment of a later one
//   sets          the victim is in one process set, other ranks are busy in another
//   joined        the victim has joined, the others go on
// Other scenes:
//   steps         `steps` allreduces of `mib` MiB (0: without end), all sums checked
//   fork          rank 1 forks a worker, which looks at what it holds; all go on, then leave
//   fork_death    rank 1 forks a worker that lives on, and is killed
//   asleep        two idle seconds after some steps: says how often a thread of rueda woke
//   hold          small allreduces without end
//   obeys         small allreduces until should_stop(), all sums checked
//   dumps         the victim crashes with so many pages that its core dump takes seconds (`gib`)
//   summoned      the victim dies as soon as it gets SIGUSR1
//   large         the victim has `ballast` MiB of memory, and is killed by a child of its own
//   recovers      rank 1 has a handler that survives invalid memory accesses; nobody is lost
//   handled       the victim crashes under an earlier handler, which writes to stderr first
//   preempted     steps of a plan until should_stop(); the victim signals itself at step `at`
//   domino        the victim dies, and `next` as soon as it is told
//   halted        the victim stops itself (SIGSTOP)
//   held          the victim waits for SIGUSR1, as its debugger does
//   slow_callback rank `slow` is in a callback until SIGUSR1; the others go on, and the victim dies
//   long_callback rank `slow` is in a callback until SIGUSR1; the others wait, and all finish
//   late          as steps, but rank 1 calls init only after SIGUSR1
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/failure/holdings.h"
#include "tests/failure/rank_calls.h"

using namespace rueda::testing;

namespace {

// Iteration `step` of a stream: ramp in, exact sum out.
void stream_step(std::vector<float>* data, int step) {
  const auto count = static_cast<int64_t>(data->size());
  const auto value = [step](int64_t i, int rank) {
    return static_cast<float>((i + step) % 64 + rank);
  };
  const int64_t stride = count / 1024 + 1;
  for (int64_t i = 0; i < count; i += stride) (*data)[static_cast<size_t>(i)] = value(i, my_rank);
  must("allreduce", sum("stream", data, &count));
  const auto ranks = static_cast<float>(my_size);
  for (int64_t i = 0; i < count; i += stride) {
    const float expected = ranks * value(i, 0) + ranks * (ranks - 1) / 2;
    if ((*data)[static_cast<size_t>(i)] == expected) continue;
    say("rank %d WRONG in step %d at %lld: %f, not %f", my_rank, step, static_cast<long long>(i),
        static_cast<double>((*data)[static_cast<size_t>(i)]), static_cast<double>(expected));
    _exit(99);
  }
}

std::vector<float> stream_data() {
  return std::vector<float>(static_cast<size_t>(number("mib", 64)) << 18);
}

// ---- scenes ----

int before_init() {
  my_rank = atoi(getenv("RUEDA_RANK"));
  if (is_victim()) die();
  join();
  barrier();  // a victim that dies late enough lets init succeed
  return 98;
}

int idle() {
  join();
  barrier();
  if (is_victim()) die();
  // Long enough to be idle as a rule when the victim goes; the promise is the same if not.
  usleep(20'000);
  barrier();
  return 98;
}

int waiting() {
  join();
  barrier();
  if (is_victim()) {
    usleep(20'000);  // as above: the others wait by now as a rule
    die();
  }
  std::vector<float> data(1000, 1.0f);
  const int64_t count = 1000;
  must("allreduce", sum("never", &data, &count));
  return 98;
}

int streaming() {
  join();
  std::vector<float> data = stream_data();
  std::atomic<int> step{0};
  std::thread fate;
  if (is_victim()) {
    fate = std::thread([&step] {
      while (step.load() < number("at", 3)) usleep(100);
      usleep(static_cast<useconds_t>(number("delay_us", 0)));
      die();
    });
  }
  for (;; ++step) stream_step(&data, step.load());
}

int shutdown_scene() {
  join();
  barrier();
  if (is_victim()) die();
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d left at %.6f", my_rank, now());
  return 0;
}

int steps() {
  join();
  std::vector<float> data = stream_data();
  const int count = number("steps", 10);
  for (int step = 0; count == 0 || step < count; ++step) {
    stream_step(&data, step);
    if (step == 1) say("rank %d pid %d under way", my_rank, getpid());
  }
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d finished", my_rank);
  return 0;
}

// What a forked child finds: every call refused, nothing of the job in its hands.
int child_of_rank(bool linger) {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_BARRIER;
  rueda_request* work = nullptr;
  const int32_t run = rueda_run(context, &op, &error);
  const int32_t submit = rueda_start(context, &op, 1, 0, &work, nullptr);
  say("child: run gives %s, submit %s, rank %d, size %d, counter %d: %s", rueda_code_name(run),
      rueda_code_name(submit), rueda_rank(context), rueda_size(context),
      static_cast<int>(rueda_counter(context, "batches")), error.message);
  rueda_shutdown(context);  // must leave the parent's job alone
  rueda_context_release(context);
  for (const std::string& thing : rueda::testing::holdings(getpid()))
    say("child holds %s", thing.c_str());
  say("child pid %d looked", getpid());
  while (linger) pause();
  return 0;
}

int fork_scene() {
  join();
  std::vector<float> data = stream_data();
  for (int step = 0; step < 3; ++step) stream_step(&data, step);
  pid_t child = -1;
  if (my_rank == 1) {
    child = fork();
    if (child == 0) _exit(child_of_rank(false));
  }
  for (int step = 3; step < 20; ++step) stream_step(&data, step);
  if (child > 0) {
    int status = 0;
    waitpid(child, &status, 0);
    say("child ended with %d", status);
    if (fork() == 0) exit(0);  // exit handlers and destructors of a child hurt nobody either
  }
  for (int step = 20; step < 25; ++step) stream_step(&data, step);
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d finished", my_rank);
  return 0;
}

int fork_death() {
  join();
  barrier();
  if (my_rank == 1) {
    if (fork() == 0) _exit(child_of_rank(true));
    barrier();
    die();
  }
  barrier();
  barrier();
  return 98;
}

int late() {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, SIGUSR1);
  sigprocmask(SIG_BLOCK, &wake, nullptr);
  int signal = 0;
  if (atoi(getenv("RUEDA_RANK")) == 1) {
    say("rank 1 pid %d waits", getpid());
    sigwait(&wake, &signal);
  }
  return steps();
}

int hold() {
  join();
  barrier();
  say("rank %d pid %d holds", my_rank, getpid());
  std::vector<float> data = stream_data();
  for (int step = 0;; ++step) {
    stream_step(&data, step);
    usleep(1000);
  }
}

int obeys() {
  join();
  barrier();
  std::vector<float> data = stream_data();
  rueda_error error = RUEDA_ERROR_INIT;
  int32_t stop = 0;
  int step = 0;
  for (; stop == 0; ++step) {
    stream_step(&data, step);
    int32_t code = RUEDA_ABORTED;
    while (code == RUEDA_ABORTED) code = rueda_should_stop(context, &stop, &error);
    if (code != RUEDA_OK) give_up("should_stop", error);
    // From its first call on it hears signals.
    if (step == 0) say("rank %d pid %d obeys", my_rank, getpid());
    usleep(1000);
  }
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d obeyed after %d steps", my_rank, step);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t at = text.find('=');
    options[text.substr(0, at)] = at == std::string::npos ? "" : text.substr(at + 1);
  }
  const std::map<std::string, int (*)()> scenes = {{"before_init", before_init},
                                                   {"idle", idle},
                                                   {"waiting", waiting},
                                                   {"streaming", streaming},
                                                   {"shutdown", shutdown_scene},
                                                   {"steps", steps},
                                                   {"fork", fork_scene},
                                                   {"fork_death", fork_death},
                                                   {"hold", hold},
                                                   {"obeys", obeys},
                                                   {"late", late},
                                                   {"planned", planned},
                                                   {"sets", sets},
                                                   {"slow_callback", slow_callback},
                                                   {"long_callback", long_callback},
                                                   {"joined", joined},
                                                   {"asleep", asleep},
                                                   {"large", large},
                                                   {"dumps", dumps},
                                                   {"summoned", summoned},
                                                   {"recovers", recovers},
                                                   {"handled", handled},
                                                   {"domino", domino},
                                                   {"halted", halted},
                                                   {"held", held},
                                                   {"preempted", preempted}};
  const auto scene = scenes.find(argc > 1 ? argv[1] : "");
  return scene == scenes.end() ? 64 : scene->second();
}
