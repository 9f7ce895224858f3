// One rank of a job with GPU tensors in an ordered group, through the C ABI alone: `ruedarun -np N
// gpu_group_program` with the fake driver and the stub of NCCL. "kill": rank 1 dies before a
// collective, "abort": it aborts the group there; the others must hear of it.
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "bindings/c/include/rueda/rueda.h"

namespace {

constexpr int kSteps = 20;
constexpr int kLast = 12;  // step of the kill, and of the abort
constexpr size_t kCount = 20000;

struct Rank {
  rueda_context* context;
  int32_t group;
  int rank;
  int size;
  rueda_error* error;

  rueda_op op(int kind, float* data) const {
    static const int64_t shape[1] = {kCount};
    rueda_op op = RUEDA_OP_INIT;
    op.kind = static_cast<decltype(op.kind)>(kind);
    op.process_set = group;
    op.input = op.output = data;
    op.shape = shape;
    op.ndim = 1;
    op.device = rank;
    return op;
  }
  // Ended, and the GPU's default stream comes behind it.
  int wait(rueda_request* request) const {
    int code = rueda_request_wait(request, 60, error);
    if (code == RUEDA_OK) code = rueda_request_stream_wait(request, nullptr, error);
    rueda_request_release(request);
    return code;
  }
  // A sum, then the sum to the next rank and another from the one before.
  int step(float* sum, float* received) const {
    rueda_op reduce = op(RUEDA_ALLREDUCE, sum);
    rueda_request* requests[2] = {};
    int code = rueda_start(context, &reduce, 1, 0, requests, error);
    if (code == RUEDA_OK) code = wait(requests[0]);
    if (code != RUEDA_OK) return code;
    rueda_op ops[2] = {op(RUEDA_SEND, sum), op(RUEDA_RECV, received)};
    ops[0].peer = (rank + 1) % size;
    ops[1].peer = (rank + size - 1) % size;
    code = rueda_start(context, ops, 2, 0, requests, error);
    for (rueda_request* request : requests) {
      if (code == RUEDA_OK) code = wait(request);
    }
    return code;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const bool kill = argc > 1 && std::strcmp(argv[1], "kill") == 0;
  const bool abort = argc > 1 && std::strcmp(argv[1], "abort") == 0;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return 1;
  Rank me{context, 0, rueda_rank(context), rueda_size(context), &error};
  // The last comes first.
  std::vector<int32_t> ranks;
  for (int rank = me.size - 1; rank >= 0; --rank) ranks.push_back(rank);
  int code = rueda_open_group(context, "gpus", ranks.data(), me.size, 0, &me.group, &error);
  // The host does not wait for the GPU, so every step has memory of its own.
  std::vector<std::vector<float>> sums(kSteps, std::vector<float>(kCount));
  std::vector<std::vector<float>> received = sums;
  for (int step = 0; step < kSteps && code == RUEDA_OK; ++step) {
    const auto at = static_cast<size_t>(step);
    for (float& value : sums[at]) value = static_cast<float>(me.rank + step);
    if (step == kLast && me.rank == 1 && kill) raise(SIGKILL);
    if (step == kLast && me.rank == 1 && abort)
      code = rueda_abort_group(context, me.group, "enough", &error);
    if (code == RUEDA_OK) code = me.step(sums[at].data(), received[at].data());
  }
  if (code == RUEDA_OK) code = rueda_close_group(context, me.group, &error);
  if (code != RUEDA_OK)
    std::fprintf(stderr, "rank %d heard: %d %s\n", me.rank, error.code, error.message);
  if (kill || abort) {
    const bool named = std::strstr(error.message, "rank 1") != nullptr &&
                       code == (kill ? RUEDA_UNAVAILABLE : RUEDA_CANCELLED);
    rueda_shutdown(context);
    rueda_context_release(context);
    return named ? 0 : 1;
  }
  rueda_shutdown(context);  // waits for the GPU
  rueda_context_release(context);
  if (code != RUEDA_OK) return 1;
  for (int step = 0; step < kSteps; ++step) {
    const auto expected = static_cast<float>(me.size * step + me.size * (me.size - 1) / 2);
    for (const auto* data : {&sums, &received}) {
      const std::vector<float>& of = (*data)[static_cast<size_t>(step)];
      if (of.front() == expected && of.back() == expected) continue;
      std::fprintf(stderr, "rank %d: %g instead of %g\n", me.rank, of.back(), expected);
      return 1;
    }
  }
  std::printf("rank %d of %d: right\n", me.rank, me.size);
  return 0;
}
