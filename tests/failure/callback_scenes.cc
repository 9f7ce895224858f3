// Scenes of rank_program in which a callback of one rank takes its time.
#include <pthread.h>

#include <atomic>

#include "tests/failure/rank_calls.h"

namespace rueda::testing {
namespace {

sigset_t summons;
std::atomic<bool> is_out{false};

void await_summons() {
  int signal = 0;
  sigwait(&summons, &signal);
}

void take_time(void*) {
  say("rank %d is in its callback", my_rank);
  await_summons();
  say("rank %d comes out of its callback", my_rank);
  is_out = true;
  is_out.notify_all();
}

bool is_slow() { return my_rank == number("slow", 0); }

void join_with_summons() {
  sigemptyset(&summons);
  sigaddset(&summons, SIGUSR1);
  sigprocmask(SIG_BLOCK, &summons, nullptr);  // rueda's threads, too
  join();
  say("rank %d pid %d is there", my_rank, getpid());
}

// An operation of all ranks, in whose callback rank `slow` stays. It has asked for it before the
// others begin, so that the thread which ends the operation is the one that calls back.
void call_back() {
  std::vector<float> data(1000, 1.0f);
  const int64_t count = 1000;
  rueda_request* first = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  const rueda_op op = sum("first", &data, &count);
  if (!is_slow()) barrier();
  if (rueda_start(context, &op, 1, 0, &first, &error) != RUEDA_OK) give_up("start", error);
  if (is_slow()) {
    if (rueda_request_on_end(first, take_time, nullptr, &error) != RUEDA_OK)
      give_up("on_end", error);
    barrier();
  }
  if (rueda_request_wait(first, -1, &error) != RUEDA_OK) give_up("first", error);
  rueda_request_release(first);
}

}  // namespace

// Rank `slow` stays in the callback of an operation that has ended until it gets SIGUSR1. With it
// the others go on in a set of their own; the victim dies, or stops (how=stop), with the next.
int slow_callback() {
  join_with_summons();
  std::vector<int32_t> others;
  for (int rank = 0; rank < my_size; ++rank) {
    if (rank != number("slow", 0)) others.push_back(rank);
  }
  const int32_t set = add_set(others);
  call_back();
  if (!is_slow()) {
    await_summons();
    std::vector<float> more(1000, 1.0f);
    const int64_t count = 1000;
    rueda_op again = sum("among the others", &more, &count);
    again.process_set = set;
    must("allreduce in a set", again);
    say("rank %d went on", my_rank);
    if (is_victim()) await_summons();
    if (is_victim() && options["how"] == "stop") {
      say("rank %d dies at %.6f", my_rank, now());
      raise(SIGSTOP);
    }
    if (is_victim()) die();
  }
  barrier();
  return 98;
}

// Rank `slow` stays in its callback until SIGUSR1, and calls nothing else meanwhile; the others
// wait for it.
int long_callback() {
  join_with_summons();
  call_back();
  if (is_slow()) is_out.wait(false);
  barrier();
  rueda_shutdown(context);
  say("rank %d finished", my_rank);
  return 0;
}

}  // namespace rueda::testing
