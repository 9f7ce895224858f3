#include "launcher/hosts/report_wire.h"

#include <algorithm>

#include "launcher/hosts/limits.h"
#include "launcher/hosts/lost_rank_wire.h"
#include "launcher/hosts/member_wire.h"

namespace rueda::launcher {
namespace {

std::string cut(const std::string& text, size_t most) { return text.substr(0, most); }

}  // namespace

control::RankCounters to_wire(const RankCounters& counters) {
  control::RankCounters message;
  message.set_rank(counters.rank);
#define RUEDA_X(name) message.set_##name(counters.progress.name);
  RUEDA_PROGRESS(RUEDA_X)
#undef RUEDA_X
  message.set_operation(counters.operation);
  message.set_operations(counters.operations);
  message.set_step(counters.step);
  message.set_member(counters.member);
  message.set_waited_ns(counters.waited_ns);
  message.set_at_ns(counters.at_ns);
  return message;
}

RankCounters from_wire(const control::RankCounters& message) {
  counters::Progress progress;
#define RUEDA_X(name) progress.name = message.name();
  RUEDA_PROGRESS(RUEDA_X)
#undef RUEDA_X
  return {message.rank(),       progress,
          message.member(),     cut(message.operation(), kMaxStateText),
          message.operations(), message.step(),
          message.waited_ns(),  message.at_ns()};
}

std::vector<control::AgentMessage> to_wire(HostReport report) {
  std::vector<control::AgentMessage> messages;
  if (report.ranks.empty()) {
    report.ranks.emplace_back();
    report.ranks.back().record.rank = -1;
  }
  for (size_t i = 0; i < report.ranks.size(); ++i) {
    RankView& view = report.ranks[i];
    control::AgentMessage message;
    auto* observed = message.mutable_observed();
    observed->set_round(report.round);
    observed->set_last(i + 1 == report.ranks.size());
    observed->set_now_ns(report.now_ns);
    observed->set_rank(view.record.rank);
    observed->set_member(view.member);
    observed->set_pid(view.pid);
    observed->set_cpu_ns(view.use.cpu_ns);
    observed->set_delayed_ns(view.use.delayed_ns);
    observed->set_host_cpu_ns(view.use.host_cpu_ns);
    observed->set_resident_bytes(view.use.resident_bytes);
    observed->set_shared_memory_bytes(view.use.shared_memory_bytes);
    observed->set_stalled(view.stalled);
    observed->set_life(static_cast<control::Observed::Life>(view.record.life));
    observed->set_state(cut(view.record.state, kMaxStateText));
    observed->set_stacks(cut(view.record.stacks, kMaxStacksText));
    for (FlightPiece& piece : view.pieces) {
      auto* added = observed->add_pieces();
      added->set_offset(piece.offset);
      added->set_data(std::move(piece.bytes));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<RankView> view_from_wire(control::Observed* message) {
  if (!control::Observed::Life_IsValid(message->life()) ||
      message->state().size() > kMaxStateText || message->stacks().size() > kMaxStacksText) {
    return Status(Code::kDataLoss, "an agent's report makes no sense");
  }
  RankView view;
  view.member = message->member();
  view.record.rank = message->rank();
  view.record.life = static_cast<RankRecord::Life>(message->life());
  view.record.state = message->state();
  view.record.stacks = message->stacks();
  view.pid = message->pid();
  view.use = {std::max<int64_t>(0, message->cpu_ns()), std::max<int64_t>(0, message->delayed_ns()),
              std::max<int64_t>(0, message->resident_bytes()),
              std::max<int64_t>(0, message->shared_memory_bytes()),
              std::max<int64_t>(0, message->host_cpu_ns())};
  view.stalled = message->stalled();
  for (auto& piece : *message->mutable_pieces())
    view.pieces.push_back({piece.offset(), std::move(*piece.mutable_data())});
  return view;
}

control::ControllerMessage to_wire(control::Order::Kind kind, int signal) {
  control::ControllerMessage message;
  message.mutable_order()->set_kind(kind);
  message.mutable_order()->set_signal(signal);
  return message;
}

control::ControllerMessage to_wire(const HostQuestion& question) {
  control::ControllerMessage message;
  auto* observe = message.mutable_observe();
  observe->set_round(question.round);
  observe->set_detail(static_cast<control::Observe::Detail>(question.detail));
  for (const Rank rank : question.stacks_of) observe->add_stacks_of(rank);
  return message;
}

control::ControllerMessage to_wire(const Order& order) {
  control::ControllerMessage message;
  switch (order.kind) {
    case Order::Kind::kRankLost: *message.mutable_rank_lost() = to_wire(order.lost); break;
    case Order::Kind::kObserve: return to_wire(order.question);
    case Order::Kind::kMail:
      message.mutable_mail()->set_member(order.member);
      message.mutable_mail()->set_text(order.text);
      break;
    case Order::Kind::kDrain: message.mutable_drain(); break;
    case Order::Kind::kStartMember: return to_wire(order.start);
    case Order::Kind::kStopMember: return stop_message(order.member, order.text, order.knows);
    case Order::Kind::kBeginEpoch: {
      auto* members = message.mutable_begin_epoch()->mutable_members();
      members->Resize(static_cast<int>(order.ranks.size()), 0);
      for (const auto& [member, rank] : order.ranks) members->Set(rank, member);
      break;
    }
    case Order::Kind::kAnnounce: message.mutable_announce()->set_word(order.word); break;
    case Order::Kind::kJobOver: message.mutable_job_over()->set_exit_code(order.exit_code); break;
    case Order::Kind::kRankFailed: return to_wire(control::Order::RANK_FAILED, 0);
    case Order::Kind::kSignal: return to_wire(control::Order::SIGNAL, order.signal);
    case Order::Kind::kUserSignal: return to_wire(control::Order::USER_SIGNAL, order.signal);
    case Order::Kind::kOutputClosed: return to_wire(control::Order::OUTPUT_CLOSED, 0);
    case Order::Kind::kKill: return to_wire(control::Order::KILL, 0);
  }
  return message;
}

std::optional<Order> order_from_wire(const control::ControllerMessage& message) {
  Order order;
  if (message.has_rank_lost()) {
    order.kind = Order::Kind::kRankLost;
    order.lost = from_wire(message.rank_lost());
  } else if (message.has_observe()) {
    order.kind = Order::Kind::kObserve;
    order.question.round = message.observe().round();
    if (!control::Observe::Detail_IsValid(message.observe().detail())) return std::nullopt;
    order.question.detail = static_cast<Detail>(message.observe().detail());
    order.question.stacks_of = {message.observe().stacks_of().begin(),
                                message.observe().stacks_of().end()};
  } else if (message.has_mail()) {
    order.kind = Order::Kind::kMail;
    order.member = message.mail().member();
    order.text = message.mail().text();
  } else if (message.has_start_member()) {
    order.kind = Order::Kind::kStartMember;
    order.start = from_wire(message.start_member());
  } else if (message.has_stop_member()) {
    order.kind = Order::Kind::kStopMember;
    order.member = message.stop_member().member();
    order.text = message.stop_member().why();
    order.knows = message.stop_member().knows();
  } else if (message.has_begin_epoch()) {
    order.kind = Order::Kind::kBeginEpoch;
    for (const uint64_t member : message.begin_epoch().members())
      order.ranks.emplace(member, static_cast<Rank>(order.ranks.size()));
  } else if (message.has_announce()) {
    order.kind = Order::Kind::kAnnounce;
    order.word = message.announce().word();
  } else if (message.has_job_over()) {
    order.kind = Order::Kind::kJobOver;
    order.exit_code = message.job_over().exit_code();
  } else if (message.has_drain()) {
    order.kind = Order::Kind::kDrain;
  } else if (message.has_order()) {
    order.signal = message.order().signal();
    switch (message.order().kind()) {
      case control::Order::RANK_FAILED: order.kind = Order::Kind::kRankFailed; break;
      case control::Order::SIGNAL: order.kind = Order::Kind::kSignal; break;
      case control::Order::USER_SIGNAL: order.kind = Order::Kind::kUserSignal; break;
      case control::Order::OUTPUT_CLOSED: order.kind = Order::Kind::kOutputClosed; break;
      case control::Order::KILL: order.kind = Order::Kind::kKill; break;
      default: return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  return order;
}

}  // namespace rueda::launcher
