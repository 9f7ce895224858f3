#include "launcher/hosts/report_wire.h"

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
  return message;
}

RankCounters from_wire(const control::RankCounters& message) {
  counters::Progress progress;
#define RUEDA_X(name) progress.name = message.name();
  RUEDA_PROGRESS(RUEDA_X)
#undef RUEDA_X
  return {message.rank(), progress, cut(message.operation(), kMaxStateText), message.operations(),
          message.step()};
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
    observed->set_pid(view.pid);
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
  view.record.rank = message->rank();
  view.record.life = static_cast<RankRecord::Life>(message->life());
  view.record.state = message->state();
  view.record.stacks = message->stacks();
  view.pid = message->pid();
  for (auto& piece : *message->mutable_pieces())
    view.pieces.push_back({piece.offset(), std::move(*piece.mutable_data())});
  return view;
}

control::ControllerMessage to_wire(const HostQuestion& question) {
  control::ControllerMessage message;
  auto* observe = message.mutable_observe();
  observe->set_round(question.round);
  observe->set_whole(question.whole);
  for (const Rank rank : question.stacks_of) observe->add_stacks_of(rank);
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
    order.question.whole = message.observe().whole();
    order.question.stacks_of = {message.observe().stacks_of().begin(),
                                message.observe().stacks_of().end()};
  } else if (message.has_mail()) {
    order.kind = Order::Kind::kMail;
    order.rank = message.mail().rank();
    order.text = message.mail().text();
  } else if (message.has_start_member()) {
    order.kind = Order::Kind::kStartMember;
    order.start.member = message.start_member().member();
    order.start.place = from_wire(message.start_member().place());
  } else if (message.has_stop_member()) {
    order.kind = Order::Kind::kStopMember;
    order.member = message.stop_member().member();
    order.text = message.stop_member().why();
    order.knows = message.stop_member().knows();
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
