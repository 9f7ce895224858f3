// PyTorch's scaled_dot_product_attention in a process of its own: the peer of the local kernel.
#pragma once

#include <sys/types.h>

#include <string>

#include "launcher/tools/bench/attention_problem.h"

namespace rueda::bench {

// One Python process with one thread of arithmetic; ended by the destructor.
class TorchPeer {
 public:
  // Unavailable says why: no Python, no PyTorch.
  static Result<TorchPeer> start(const std::string& python);
  TorchPeer(TorchPeer&& other) noexcept;
  TorchPeer& operator=(TorchPeer&&) = delete;
  ~TorchPeer();

  const std::string& version() const { return version_; }
  // Makes the tensors of a case; further runs use them, overwritten each time outside the timer.
  Status make(const AttentionShape& shape);
  // Seconds of CPU time of one forward, or of one forward and backward.
  Result<double> run(bool backward);

 private:
  TorchPeer(pid_t child, std::FILE* to, std::FILE* from) : child_(child), to_(to), from_(from) {}
  Result<std::string> ask(const std::string& line);

  pid_t child_;
  std::FILE *to_, *from_;
  std::string version_;
};

}  // namespace rueda::bench
