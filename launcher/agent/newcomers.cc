#include "launcher/agent/newcomers.h"

#include <chrono>
#include <system_error>

#include "launcher/hosts/machine.h"
#include "launcher/hosts/reach_wire.h"

namespace rueda::launcher {

void Newcomers::begin(const control::ProbeTask& task) {
  const auto key = key_from(task.job_key());
  auto listener = ReachListener::start();
  control::AgentMessage listening;
  if (key.ok() && listener.ok()) {
    listener_ = std::move(listener).value();
    listener_->answer_as(task.host_index(), task.hosts(), task.job_id(), key.value());
    listening.mutable_listening()->set_port(listener_->port());
  }
  listening.mutable_listening()->set_round(task.round());
  send_(std::move(listening));  // without a port nobody reaches us, and they say so
  std::erase_if(tries_, [](const std::future<void>& one) {
    return one.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  const auto reach = [this, task, key] {
    control::AgentMessage message;
    // Who has no threads left has reached nobody.
    message.mutable_probe_report()->set_round(task.round());
    try {
      if (key.ok()) message = reach_all(task, key.value());
    } catch (const std::system_error&) {
    }
    send_(std::move(message));
  };
  try {
    tries_.push_back(std::async(std::launch::async, reach));
  } catch (const std::system_error&) {
    reach();
  }
}

}  // namespace rueda::launcher
