// What the agreement of a simulated rank asks for, done in simulated time.
#include <algorithm>

#include "tests/simulation/sim_rank.h"

namespace rueda::testing {

namespace event = negotiation::event;
namespace action = negotiation::action;

bool SimRank::perform() {
  bool any = false;
  while (!negotiator_.actions().empty()) {
    any = true;
    for (const negotiation::Action& next : std::exchange(negotiator_.actions(), {}))
      std::visit([this](const auto& what) { perform(what); }, next);
  }
  if (given_up_) give_up(*std::exchange(given_up_, std::nullopt));
  return any;
}

void SimRank::perform(const action::Send& message) {
  if (message.to != action::Send::kEveryone) return send(message.to, message.message);
  for (Rank peer = 0; peer < world_->size; ++peer) {
    if (peer != rank_) send(peer, message.message);
  }
}

void SimRank::send(Rank to, const std::string& message) {
  if (dead_) return;
  ++world_->control_messages;
  SimRank* peer = (*all_)[static_cast<size_t>(to)].get();
  world_->carry(rank_, to, Stream::kControl,
                [this, peer, message] { peer->receive(rank_, message); });
}

// What all ranks have to see alike; its own part has to fit.
std::string SimRank::text_of(const wire::Request& request, const negotiation::SizesPtr& sizes) {
  if (!negotiation::fit(request, sizes, rank_, world_->size))
    world_->fail("the sizes of " + request.name + " are not what this rank has submitted");
  std::string text = request.name;
  if (sizes == nullptr) return text;
  for (const int64_t rows : *sizes) text += "," + std::to_string(rows);
  return text;
}

void SimRank::perform(const action::Launch& launch) {
  std::vector<Op*> ops;
  for (const action::Member& member : launch.members) {
    if (member.neutral == nullptr) {
      ops.push_back(member.handle.as<Op>());
    } else {
      neutrals_.push_back(std::make_unique<Op>());
      neutrals_.back()->request = *member.neutral;
      ops.push_back(neutrals_.back().get());
    }
  }
  const wire::Response& batch = launch.batch;
  std::string text = std::to_string(batch.protocol) + ": ";
  for (size_t i = 0; i < ops.size(); ++i) {
    text += text_of(ops[i]->request, launch.sizes[i]) + "@" +
            (job_->joins ? "" : std::to_string(ops[i]->step)) + " ";
  }
  if (batch.kind == CollectiveKind::kJoin) {
    world_->same("join", joins_++, std::to_string(batch.last_joined));
    for (Op* op : ops) finish(op, {});
    return;
  }
  const uint64_t number = launches_++;
  world_->same("negotiated batch", number, text);
  running_.push_back(ops);
  ++running_count_;
  // Ends on all ranks some time after the last of them has begun it.
  if (++world_->launched[number] < world_->size) return;
  for (const auto& peer : *all_) {
    SimRank* rank = peer.get();
    world_->after(world_->delay(), [rank, number] {
      if (rank->dead_ || rank->broken_) return;
      for (Op* op : std::exchange(rank->running_[number], {})) rank->finish(op, {});
      --rank->running_count_;
      rank->poke();
    });
  }
}

void SimRank::perform(const action::Finish& end) { finish(end.handle, end.status); }

void SimRank::perform(const action::Hold& hold) {
  Op* op = hold.handle.as<Op>();
  op->may_batch = true;
  if (!op->awaited) return;
  negotiator_.on(event::Awaited{op->request.name});
  blocked_already_ = true;
}

void SimRank::perform(const action::AskSites& ask) {
  event::Sites answer{{}, world_->time()};
  for (const auto& question : ask.questions) answer.sites.push_back({question.name, ""});
  negotiator_.on(answer);
}

void SimRank::perform(const action::GiveUp& end) {
  world_->fail("rank " + std::to_string(rank_) + " gave up: " + end.verdict.message());
  given_up_ = end.verdict;
}

void SimRank::perform(const action::BeginPlan& begin) {
  channel_->begin(begin.plan, begin.requests.size());
  planned_ = begin.requests;
  entered_ = 0;
  std::string text;
  for (size_t i = 0; i < planned_.size(); ++i) text += text_of(*planned_[i], begin.sizes[i]) + " ";
  world_->same("plan", begin.plan.generation, text);
}

void SimRank::perform(const action::EnterBatch& enter) {
  for (const OpHandle handle : enter.handles) {
    const wire::Request& request = handle.as<Op>()->request;
    if (request != *planned_[entered_++ % planned_.size()])
      world_->fail(request.name + " is not what was planned");
  }
  channel_->enter(enter.handles);
}

void SimRank::perform(const action::RevokePlan& revoke) { channel_->revoke(revoke.last_word); }

void SimRank::perform(const action::EndPlan& end) {
  const std::vector<OpHandle> handles = channel_->withdraw(end.first);
  negotiator_.on(event::Withdrawn{handles, world_->time()});
}

}  // namespace rueda::testing
