// Questions, reports and orders as messages between controller and agents. Whatever arrives is
// checked here: numbers outside of what they may be are refused, texts and pieces are of bounded
// size.
#pragma once

#include <optional>
#include <vector>

#include "launcher/hosts/order.h"
#include "launcher/hosts/wire.h"
#include "launcher/observe/host_report.h"

namespace rueda::launcher {

control::RankCounters to_wire(const RankCounters& counters);
RankCounters from_wire(const control::RankCounters& message);

// One message per rank, each within kMaxControlBytes; the last one says so.
std::vector<control::AgentMessage> to_wire(HostReport report);
// kDataLoss: it cannot be. `pieces` are moved out of the message.
Result<RankView> view_from_wire(control::Observed* message);

control::ControllerMessage to_wire(const HostQuestion& question);
// An order as a message. kBeginEpoch: its ranks are 0, 1, ... without a gap.
control::ControllerMessage to_wire(const Order& order);
control::ControllerMessage to_wire(control::Order::Kind kind, int signal);
// Empty: the message is no order.
std::optional<Order> order_from_wire(const control::ControllerMessage& message);

}  // namespace rueda::launcher
