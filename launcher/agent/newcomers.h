// What an agent whose ranks run does when another host is to join the job: it opens a port for
// those who try to reach it, and tries to reach them itself, beside its own work.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "launcher/hosts/reach.h"
#include "launcher/hosts/wire.h"

namespace rueda::launcher {

class Newcomers {
 public:
  // `send`: called from other threads too. The destructor waits for what is under way, a few
  // seconds at most.
  explicit Newcomers(std::function<void(control::AgentMessage)> send) : send_(std::move(send)) {}

  void begin(const control::ProbeTask& task);
  // Nobody is answered any more.
  void end() { listener_.reset(); }

 private:
  const std::function<void(control::AgentMessage)> send_;
  std::unique_ptr<ReachListener> listener_;
  std::vector<std::future<void>> tries_;
};

}  // namespace rueda::launcher
