// Scenes of rank_program with process sets.
#include "tests/failure/rank_calls.h"

namespace rueda::testing {

int32_t add_set(const std::vector<int32_t>& ranks) {
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* work = nullptr;
  if (rueda_add_process_set(context, ranks.data(), static_cast<int32_t>(ranks.size()), 0, &work,
                            &error) != RUEDA_OK ||
      rueda_request_wait(work, -1, &error) != RUEDA_OK) {
    give_up("add_process_set", error);
  }
  const auto id = static_cast<int32_t>(rueda_request_result(work));
  rueda_request_release(work);
  return id;
}

namespace {

// Sums among a set's members that never end.
[[noreturn]] void busy_in(int32_t set) {
  std::vector<float> data(100000);
  const auto count = static_cast<int64_t>(data.size());
  const auto members = static_cast<float>(rueda_process_set_ranks(context, set, nullptr, 0));
  for (;;) {
    std::fill(data.begin(), data.end(), 1.0f);
    rueda_op op = sum("busy", &data, &count);
    op.process_set = set;
    must("allreduce in a set", op);
    if (data == std::vector<float>(data.size(), members)) continue;
    say("rank %d WRONG", my_rank);
    _exit(99);
  }
}

}  // namespace

// The victim and its partner have one set, the others another, in which they are busy.
int sets() {
  join();
  const int victim = number("victim", -1);
  const int partner = victim == 0 ? 1 : 0;
  std::vector<int32_t> others;
  for (int rank = 0; rank < my_size; ++rank) {
    if (rank != victim && rank != partner) others.push_back(rank);
  }
  const int32_t of_victim = add_set({victim, partner});
  const int32_t of_others = add_set(others);
  barrier();
  if (is_victim()) {
    usleep(static_cast<useconds_t>(number("delay_us", 0)));
    die();
  }
  busy_in(my_rank == partner ? of_victim : of_others);
}

// The victim has joined and dies; the others go on with their steps.
int joined() {
  join();
  std::vector<float> data(100000);
  const auto count = static_cast<int64_t>(data.size());
  for (int step = 0;; ++step) {
    if (is_victim() && step == 50) break;
    std::fill(data.begin(), data.end(), 1.0f);
    must("allreduce", sum("step", &data, &count));
  }
  rueda_op op = RUEDA_OP_INIT;
  op.kind = RUEDA_JOIN;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_request* work = nullptr;
  if (rueda_start(context, &op, 1, 0, &work, &error) != RUEDA_OK) give_up("join", error);
  usleep(static_cast<useconds_t>(number("delay_us", 0)));
  die();
}

}  // namespace rueda::testing
