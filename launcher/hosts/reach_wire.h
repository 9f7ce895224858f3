// Trying to reach hosts (reach.h), as messages.
#pragma once

#include <string>
#include <vector>

#include "launcher/hosts/reach.h"
#include "launcher/hosts/wire.h"

namespace rueda::launcher {

// Does what the task says, and reports.
inline control::AgentMessage reach_all(const control::ProbeTask& task,
                                       const rendezvous::JobKey& key) {
  std::vector<ReachTarget> targets;
  for (const auto& target : task.targets()) {
    targets.push_back({target.host_index(),
                       {target.addresses().begin(), target.addresses().end()},
                       target.port()});
  }
  control::AgentMessage message;
  auto* report = message.mutable_probe_report();
  report->set_round(task.round());
  for (const ReachTry& one :
       try_to_reach(task.host_index(), task.hosts(), task.job_id(), key, targets)) {
    auto* added = report->add_tries();
    added->set_host_index(one.to);
    added->set_address(one.address);
    added->set_error(one.error);
  }
  return message;
}

}  // namespace rueda::launcher
