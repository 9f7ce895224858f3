// One rank of a job that passes GPU tensors around a ring, through the C ABI alone: `ruedarun -np N
// gpu_message_program` with the fake driver and the stub of NCCL. "kill": rank 1 dies before its
// turn, the others must hear of it.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "bindings/c/include/rueda/rueda.h"

int main(int argc, char** argv) {
  const bool kill = argc > 1 && std::strcmp(argv[1], "kill") == 0;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return 1;
  const int rank = rueda_rank(context);
  const int size = rueda_size(context);
  constexpr int kSteps = 30;
  constexpr size_t kCount = 100000;
  const int64_t shape[1] = {kCount};
  // The host does not wait for the GPU, so every step has memory of its own.
  std::vector<std::vector<float>> in(kSteps, std::vector<float>(kCount, -1));
  std::vector<std::vector<float>> out(kSteps, std::vector<float>(kCount));
  bool heard = false;
  for (int step = 0; step < kSteps && !heard; ++step) {
    const auto at = static_cast<size_t>(step);
    for (float& value : out[at]) value = static_cast<float>(100 * rank + step);
    rueda_op ops[2] = {RUEDA_OP_INIT, RUEDA_OP_INIT};
    ops[0].kind = RUEDA_SEND;
    ops[0].input = out[at].data();
    ops[0].peer = (rank + 1) % size;
    ops[0].tag = 3;
    ops[0].shape = shape;
    ops[0].ndim = 1;
    ops[0].device = rank;
    ops[1] = ops[0];
    ops[1].kind = RUEDA_RECV;
    ops[1].input = nullptr;
    ops[1].output = in[at].data();
    ops[1].peer = (rank + size - 1) % size;
    if (kill && step == 20 && rank == 1) raise(SIGKILL);
    rueda_request* works[2] = {};
    for (int i = 0; i < 2 && !heard; ++i)
      heard = rueda_start(context, &ops[i], 1, 0, &works[i], &error) != RUEDA_OK;
    for (rueda_request* work : works) {
      if (work == nullptr) continue;
      if (!heard) heard = rueda_request_wait(work, 60, &error) != RUEDA_OK;
      if (!heard) heard = rueda_request_stream_wait(work, nullptr, &error) != RUEDA_OK;
      rueda_request_release(work);
    }
  }
  if (heard) {
    std::fprintf(stderr, "rank %d heard: %d %s\n", rank, error.code, error.message);
    const bool named =
        error.code == RUEDA_UNAVAILABLE && std::strstr(error.message, "rank 1") != nullptr;
    rueda_shutdown(context);
    rueda_context_release(context);
    return kill && named ? 0 : 1;
  }
  rueda_shutdown(context);  // waits for the GPU
  rueda_context_release(context);
  for (int step = 0; step < kSteps; ++step) {
    const auto expected = static_cast<float>(100 * ((rank + size - 1) % size) + step);
    if (in[static_cast<size_t>(step)] == std::vector<float>(kCount, expected)) continue;
    std::fprintf(stderr, "rank %d: wrong message in step %d\n", rank, step);
    return 1;
  }
  std::printf("rank %d of %d: right\n", rank, size);
  return 0;
}
