// Scenes of rank_program about how a loss becomes known: large processes, crashes under handlers,
// silence.
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstring>

#include "tests/failure/rank_calls.h"

namespace rueda::testing {
namespace {

sigjmp_buf back;
void jump_back(int) { siglongjmp(back, 1); }
void write_and_end(int signal) {
  say("handler of signal %d", signal);
  ::signal(signal, SIG_DFL);
  raise(signal);
}
void nothing_to_say(int) {}

// Memory that the kernel takes a while to free.
void carry(size_t mib) {
  if (mib == 0) return;
  void* const memory =
      mmap(nullptr, mib << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(memory, mib << 20, MADV_NOHUGEPAGE);
  memset(memory, 1, mib << 20);
}

void wait_for_ever() {
  std::vector<float> data(1000, 1.0f);
  const int64_t count = 1000;
  must("allreduce", sum("never", &data, &count));
}

}  // namespace

int large() {
  join();
  if (is_victim()) {
    carry(static_cast<size_t>(number("ballast", 1024)));
    say("rank %d has its memory", my_rank);
  }
  barrier();
  if (is_victim()) {
    usleep(number("delay_us", 20'000));  // the others wait by now, as a rule
    die();
  }
  wait_for_ever();
  return 98;
}

int dumps() {
  join();
  if (is_victim()) {
    rlimit limit = {};
    getrlimit(RLIMIT_CORE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_CORE, &limit);
    // Pages that were never touched are holes of the core: they cost its writer time, but no disk
    // and no memory.
    const size_t bytes = static_cast<size_t>(number("gib", 64)) << 30;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || limit.rlim_max == 0 || chdir(options["folder"].c_str()) != 0)
      say("rank %d cannot dump", my_rank);
    else
      *static_cast<char*>(memory) = 1;
    say("rank %d pid %d dumps", my_rank, getpid());
  }
  barrier();
  if (is_victim()) die();
  wait_for_ever();
  return 98;
}

int summoned() {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, SIGUSR1);
  sigprocmask(SIG_BLOCK, &wake, nullptr);
  join();
  barrier();
  say("rank %d pid %d is there", my_rank, getpid());
  if (is_victim()) {
    int signal = 0;
    sigwait(&wake, &signal);
    die();
  }
  wait_for_ever();
  return 98;
}

int recovers() {
  join();
  struct sigaction mine = {};
  mine.sa_handler = jump_back;
  if (my_rank == 1) {
    // Installed before a second runtime's handlers would be: the library's own come first here, so
    // this one replaces them as a language runtime's would.
    sigaction(SIGSEGV, &mine, nullptr);
    volatile int survived = 0;
    while (survived < 3) {
      if (sigsetjmp(back, 1) == 0) write_nowhere();
      survived = survived + 1;
    }
    say("rank 1 survived %d", survived);
  }
  barrier();
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d finished", my_rank);
  return 0;
}

int handled() {
  // Before init: the library finds it and leaves it the last word.
  signal(SIGSEGV, options["handler"] == "recovers" ? jump_back : write_and_end);
  signal(SIGFPE, nothing_to_say);
  signal(SIGTERM, nothing_to_say);
  join();
  barrier();
  if (is_victim() && options["handler"] == "returns") {
    carry(256);
    raise(SIGFPE);
    die();
  }
  if (is_victim() && options["handler"] == "recovers") {
    if (sigsetjmp(back, 1) == 0) write_nowhere();
    usleep(500'000);  // twice as long as an agent takes to look
    say("rank %d survived", my_rank);
  } else if (is_victim()) {
    usleep(20'000);
    die();
  }
  if (options["handler"] == "recovers") {
    barrier();
    rueda_shutdown(context);
    rueda_context_release(context);
    say("rank %d finished", my_rank);
    return 0;
  }
  wait_for_ever();
  return 98;
}

int halted() {
  join();
  barrier();
  if (is_victim()) {
    say("rank %d dies at %.6f", my_rank, now());
    say("rank %d pid %d stops", my_rank, getpid());
    raise(SIGSTOP);
    say("rank %d goes on", my_rank);
  }
  barrier();
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d finished", my_rank);
  return 0;
}

int domino() {
  sigset_t asked;
  sigemptyset(&asked);
  sigaddset(&asked, SIGTERM);
  sigprocmask(SIG_BLOCK, &asked, nullptr);
  join();
  barrier();
  if (is_victim()) {
    usleep(20'000);
    die();
  }
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_BARRIER;
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_run(context, &op, &error) == RUEDA_OK) return 98;
  if (my_rank == number("next", -1)) abort();
  int signal = 0;
  sigwait(&asked, &signal);  // the launcher wants to end us: it knows of both by now
  give_up("barrier", error);
}

int held() {
  sigset_t wake;
  sigemptyset(&wake);
  sigaddset(&wake, SIGUSR1);
  sigprocmask(SIG_BLOCK, &wake, nullptr);
  join();
  barrier();
  if (is_victim()) {
    say("rank %d pid %d waits for SIGUSR1", my_rank, getpid());
    int signal = 0;
    sigwait(&wake, &signal);
  }
  barrier();
  rueda_shutdown(context);
  rueda_context_release(context);
  say("rank %d finished", my_rank);
  return 0;
}

int preempted() {
  join();
  std::vector<float> data(1000, 1.0f);
  const int64_t count = 1000;
  rueda_op op = sum("step", &data, &count);
  rueda_request* prepared = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  if (rueda_request_create(context, &op, 1, 0, &prepared, &error) != RUEDA_OK)
    give_up("prepare", error);
  for (int step = 1; step < 10'000'000; ++step) {
    if (rueda_request_run(prepared, data.data(), data.data(), NULL, -1, &error) != RUEDA_OK)
      give_up("step", error);
    std::fill(data.begin(), data.end(), 1.0f);
    if (is_victim() && step == number("at", 10)) raise(number("signal", SIGTERM));
    int32_t stop = 0, code = RUEDA_ABORTED;
    while (code == RUEDA_ABORTED) code = rueda_should_stop(context, &stop, &error);
    if (code != RUEDA_OK) give_up("should_stop", error);
    if (step == number("say", -1)) say("rank %d is at step %d", my_rank, step);
    if (stop == 0) continue;
    say("rank %d stops at step %d, %lld planned batches", my_rank, step,
        static_cast<long long>(rueda_counter(context, "planned_batches")));
    rueda_request_release(prepared);
    rueda_shutdown(context);
    rueda_context_release(context);
    return 0;
  }
  return 98;
}

}  // namespace rueda::testing
