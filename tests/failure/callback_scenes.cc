// Scenes of rank_program in which a callback of one rank takes its time.
#include <pthread.h>

#include "tests/failure/rank_calls.h"

namespace rueda::testing {
namespace {

sigset_t summons;

void await_summons() {
  int signal = 0;
  sigwait(&summons, &signal);
}

void take_time(void*) {
  say("rank %d is in its callback", my_rank);
  await_summons();
  say("rank %d comes out of its callback", my_rank);
}

}  // namespace

// Rank `slow` stays in the callback of an operation that has ended until it gets SIGUSR1. With it
// the others go on in a set of their own; the victim dies, or stops (how=stop), with the next.
int slow_callback() {
  sigemptyset(&summons);
  sigaddset(&summons, SIGUSR1);
  sigprocmask(SIG_BLOCK, &summons, nullptr);  // rueda's threads, too
  join();
  const bool is_slow = my_rank == number("slow", 0);
  std::vector<int32_t> others;
  for (int rank = 0; rank < my_size; ++rank) {
    if (rank != number("slow", 0)) others.push_back(rank);
  }
  const int32_t set = add_set(others);
  std::vector<float> data(1000, 1.0f);
  const int64_t count = 1000;
  rueda_request* first = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  const rueda_op op = sum("first", &data, &count);
  say("rank %d pid %d is there", my_rank, getpid());
  if (rueda_start(context, &op, 1, 0, &first, &error) != RUEDA_OK) give_up("start", error);
  if (is_slow && rueda_request_on_end(first, take_time, nullptr, &error) != RUEDA_OK)
    give_up("on_end", error);
  if (rueda_request_wait(first, -1, &error) != RUEDA_OK) give_up("first", error);
  rueda_request_release(first);
  if (!is_slow) {
    await_summons();
    std::vector<float> more(1000, 1.0f);
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

}  // namespace rueda::testing
