// A rank of a job that attends again and again; the victim dies in a given call of its local
// kernel.
//   fault_program VICTIM FORWARD_CALL BACKWARD_CALL [ulysses=U] [rotate=q]
// With one tile in each step the n-th call of the kernel is the n-th step: 0 is what needs no
// message. -1: not in this pass. Survivors print what they are told.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace {

int forward_call = -1, backward_call = -1;
std::atomic<int> forwards{0}, backwards{0};

void die_at(int call, int mine) {
  if (call != mine) return;
  kill(getpid(), SIGKILL);
}
// The victim's results reach nobody who looks at them.
void die_forward(const rueda_attention_tile*, float*) { die_at(forwards++, forward_call); }
void die_backward(const rueda_attention_tile*, float*) { die_at(backwards++, backward_call); }

int told(int rank, const rueda_error& error) {
  std::printf("rank %d told: %s\n", rank, error.message);
  std::fflush(stdout);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  rueda_error error = RUEDA_ERROR_INIT;
  rueda_context* context = nullptr;
  if (rueda_init(nullptr, &context, &error) != RUEDA_OK) return told(-1, error);
  const int rank = rueda_rank(context), size = rueda_size(context);
  if (rank == std::atoi(argv[1])) {
    forward_call = std::atoi(argv[2]);
    backward_call = std::atoi(argv[3]);
    rueda_attention_kernel kernel = {sizeof(kernel), "dies",       100, 1u << RUEDA_FLOAT32,
                                     die_forward,    die_backward, 0};
    if (rueda_attention_add_kernel(&kernel, &error) != RUEDA_OK) return told(rank, error);
  }
  constexpr int64_t kTokens = 16, kHeads = 4, kDim = 8;
  rueda_attention_spec spec = RUEDA_ATTENTION_SPEC_INIT;
  spec.length = kTokens * size;
  spec.heads = spec.kv_heads = kHeads;
  spec.head_dim = kDim;
  spec.chunk_tokens = kTokens;
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("ulysses=", 0) == 0) spec.ulysses = std::atoi(argv[i] + 8);
    if (word == "rotate=q") spec.rotate_forward = spec.rotate_backward = 2;
  }
  // One tile of one KV head in each step, so that a call of the kernel is a step.
  if (spec.ulysses == 1) spec.kv_heads = 1;
  rueda_attention_plan* plan = nullptr;
  if (rueda_attention_plan_create(context, &spec, 0, 0, 1, &plan, &error) != RUEDA_OK)
    return told(rank, error);
  const size_t count = kTokens * kHeads * kDim;
  std::vector<float> q(count, 0.1f), k(count, 0.2f), v(count, 0.3f), dout(count, 1), out(count),
      lse(kTokens * kHeads), dq(count), dk(count), dv(count);
  for (int round = 0; round < 100; ++round) {
    rueda_attention_saved* saved = nullptr;
    rueda_request* call = nullptr;
    int32_t code = rueda_attention_forward(context, plan, 0, 1, q.data(), k.data(), v.data(),
                                           out.data(), lse.data(), &saved, &call, &error);
    if (code == RUEDA_OK) code = rueda_request_wait(call, 60, &error);
    rueda_request_release(call);
    if (code == RUEDA_OK) {
      call = nullptr;
      code = rueda_attention_backward(context, plan, 0, 1, dout.data(), nullptr, q.data(), k.data(),
                                      v.data(), out.data(), lse.data(), saved, dq.data(), dk.data(),
                                      dv.data(), &call, &error);
      if (code == RUEDA_OK) code = rueda_request_wait(call, 60, &error);
      rueda_request_release(call);
    }
    rueda_attention_saved_release(saved);
    if (code != RUEDA_OK) {
      told(rank, error);
      break;
    }
  }
  rueda_attention_plan_release(plan);
  rueda_shutdown(context);
  rueda_context_release(context);
  return 1;
}
