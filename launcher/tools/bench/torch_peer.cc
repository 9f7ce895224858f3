#include "launcher/tools/bench/torch_peer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace rueda::bench {
namespace {

// "make DTYPE HEADS TOKENS DIM CAUSAL", "forward", "both"; each answered with one line.
constexpr const char* kProgram = R"(
import sys, time
try:
    import torch
except ImportError as error:
    print("no", error, flush=True)
    sys.exit()
torch.set_num_threads(1)
attend = torch.nn.functional.scaled_dot_product_attention
print("torch", torch.__version__, flush=True)
for line in sys.stdin:
    word = line.split()
    if word[0] == "make":
        dtype = torch.bfloat16 if word[1] == "bf16" else torch.float32
        shape = (1, *map(int, word[2:5]))
        causal = word[5] == "1"
        q, k, v, g = (torch.randn(shape).to(dtype) for _ in range(4))
        print("made", flush=True)
        continue
    both = word[0] == "both"
    for x in (q, k, v, g):
        x.requires_grad_(False).neg_()
    for x in (q, k, v):
        x.requires_grad_(both)
        x.grad = None
    begin = time.process_time()
    out = attend(q, k, v, is_causal=causal)
    if both:
        out.backward(g)
    print(time.process_time() - begin, flush=True)
)";

}  // namespace

Result<TorchPeer> TorchPeer::start(const std::string& python) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0) return unavailable(std::strerror(errno));
  if (pipe2(out, O_CLOEXEC) != 0) {
    const int reason = errno;
    close(in[0]);
    close(in[1]);
    return unavailable(std::strerror(reason));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string words[] = {python, "-c", kProgram};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  const int failed = posix_spawnp(&child, python.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  if (failed != 0) {
    close(in[1]);
    close(out[0]);
    return unavailable("cannot start " + python + ": " + std::strerror(failed));
  }
  signal(SIGPIPE, SIG_IGN);  // a peer that ends is an answer, not our end
  TorchPeer peer(child, fdopen(in[1], "w"), fdopen(out[0], "r"));
  const Result<std::string> hello = peer.ask("");
  if (!hello.ok()) return hello.status();
  if (hello.value().rfind("torch ", 0) != 0)
    return unavailable(python + " has no PyTorch: " + hello.value());
  peer.version_ = hello.value();
  return peer;
}

TorchPeer::TorchPeer(TorchPeer&& other) noexcept
    : child_(std::exchange(other.child_, -1)),
      to_(std::exchange(other.to_, nullptr)),
      from_(std::exchange(other.from_, nullptr)),
      version_(std::move(other.version_)) {}

TorchPeer::~TorchPeer() {
  if (child_ < 0) return;
  std::fclose(to_);
  std::fclose(from_);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

Result<std::string> TorchPeer::ask(const std::string& line) {
  if (!line.empty() && (std::fputs(line.c_str(), to_) < 0 || std::fflush(to_) != 0))
    return unavailable("the process with PyTorch has ended");
  char answer[256];
  if (std::fgets(answer, sizeof(answer), from_) == nullptr)
    return unavailable("the process with PyTorch has ended");
  std::string text = answer;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Status TorchPeer::make(const AttentionShape& shape) {
  return ask(std::string("make ") + (shape.bf16 ? "bf16 " : "f32 ") + std::to_string(shape.heads) +
             " " + std::to_string(shape.tokens) + " " + std::to_string(shape.head_dim) + " " +
             (shape.causal ? "1" : "0") + "\n")
      .status();
}

Result<double> TorchPeer::run(bool backward) {
  RUEDA_ASSIGN_OR_RETURN(const std::string answer, ask(backward ? "both\n" : "forward\n"));
  return std::strtod(answer.c_str(), nullptr);
}

}  // namespace rueda::bench
