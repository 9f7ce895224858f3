// A verdict as a message between agents and controller.
#pragma once

#include "launcher/hosts/wire.h"
#include "runtime/observe/life/life_page.h"

namespace rueda::launcher {

inline control::RankLost to_wire(const life::LostRank& lost) {
  control::RankLost message;
  message.set_epoch(lost.epoch);
  message.set_member(lost.member);
  message.set_rank(lost.rank);
  message.set_pid(lost.pid);
  message.set_operations(lost.operations);
  message.set_step(lost.step);
  message.set_noticed_ns(lost.noticed_ns);
  message.set_cause_is_final(lost.cause_is_final != 0);
  message.set_host(lost.host.str());
  message.set_operation(lost.operation.str());
  message.set_cause(lost.cause.str());
  return message;
}

inline life::LostRank from_wire(const control::RankLost& message) {
  life::LostRank lost;
  lost.epoch = message.epoch();
  lost.member = message.member();
  lost.rank = message.rank();
  lost.pid = message.pid();
  lost.operations = message.operations();
  lost.step = message.step();
  lost.noticed_ns = message.noticed_ns();
  lost.cause_is_final = message.cause_is_final() ? 1 : 0;
  lost.host.set(message.host());
  lost.operation.set(message.operation());
  lost.cause.set(message.cause());
  return lost;
}

}  // namespace rueda::launcher
