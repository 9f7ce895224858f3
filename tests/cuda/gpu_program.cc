// One rank of a job with GPU tensors, through the C ABI alone: `ruedarun -np N gpu_program` with
// the fake driver and the stub of NCCL. "kill": rank 1 dies in a collective, the others must hear
// of it.
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "bindings/c/include/rueda/rueda.h"

namespace {

int fail(const char* what, const rueda_error& error) {
  std::fprintf(stderr, "%s: %d %s\n", what, error.code, error.message);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool kill = argc > 1 && std::strcmp(argv[1], "kill") == 0;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return fail("init", error);
  const int rank = rueda_rank(context);
  const int size = rueda_size(context);
  constexpr int kSteps = 30;
  constexpr size_t kCount = 100000;
  const int64_t shape[1] = {kCount};
  // The host does not wait for the GPU, so every step has memory of its own.
  std::vector<std::vector<float>> all(kSteps, std::vector<float>(kCount));
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float>& device = all[static_cast<size_t>(step)];
    std::vector<float> host(1000, 1.0f);
    const int64_t small[1] = {1000};
    for (float& value : device) value = static_cast<float>(rank + step);
    rueda_op ops[2] = {RUEDA_OP_INIT, RUEDA_OP_INIT};
    ops[0].kind = RUEDA_ALLREDUCE;
    ops[0].name = "on the GPU";
    ops[0].input = ops[0].output = device.data();
    ops[0].shape = shape;
    ops[0].ndim = 1;
    ops[0].device = rank;
    ops[1] = ops[0];
    ops[1].name = "on the host";
    ops[1].input = ops[1].output = host.data();
    ops[1].shape = small;
    ops[1].device = -1;
    rueda_request* works[2] = {};
    if (kill && step == 20 && rank == 1) raise(SIGKILL);
    if (rueda_start(context, ops, 2, 0, works, &error) != RUEDA_OK) {
      if (kill) break;
      return fail("submit", error);
    }
    int code = RUEDA_OK;
    for (rueda_request* work : works) {
      if (code == RUEDA_OK) code = rueda_request_wait(work, 60, &error);
    }
    if (code == RUEDA_OK) code = rueda_request_stream_wait(works[0], nullptr, &error);
    for (rueda_request* work : works) rueda_request_release(work);
    if (code != RUEDA_OK) {
      if (kill) break;
      return fail("wait", error);
    }
    if (host[999] != static_cast<float>(size)) return fail("wrong sum on the host", error);
  }
  if (kill) {
    std::fprintf(stderr, "rank %d heard: %d %s\n", rank, error.code, error.message);
    const bool named =
        error.code == RUEDA_UNAVAILABLE && std::strstr(error.message, "rank 1") != nullptr;
    rueda_shutdown(context);
    rueda_context_release(context);
    return named ? 0 : 1;
  }
  rueda_shutdown(context);  // waits for the GPU
  rueda_context_release(context);
  for (int step = 0; step < kSteps; ++step) {
    const auto expected = static_cast<float>(size * step + size * (size - 1) / 2);
    const std::vector<float>& device = all[static_cast<size_t>(step)];
    if (device.front() == expected && device.back() == expected) continue;
    std::fprintf(stderr, "rank %d: %g instead of %g\n", rank, device.back(), expected);
    return 1;
  }
  std::printf("rank %d of %d: right\n", rank, size);
  return 0;
}
