// AgreeingRanks: the Negotiators of a small job in one place. Messages arrive at once and in order;
// what is launched, or entered by all in a plan, has ended at once. Keeps what was asked for.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/negotiation/negotiator.h"
#include "tests/runtime/requests.h"

namespace rueda::testing {

using negotiation::Sizes;

class AgreeingRanks {
 public:
  struct Op {
    wire::Request request;
    int64_t number = 0;  // of this rank's operations of its name
    bool done = false;
    bool awaited = false;  // a thread waits for it
    Status status;
  };
  struct Member {
    std::unique_ptr<negotiation::Negotiator> negotiator;
    std::vector<std::unique_ptr<Op>> ops;
    std::deque<std::pair<Rank, std::string>> inbox;
    std::vector<std::vector<plan::OpHandle>> entered;  // in the plan in force
    uint64_t ran = 0;                                  // of those
    uint64_t generation = 0;
    std::vector<wire::Response> launched;
    std::vector<Sizes> sizes;  // of what was launched and has any
    // Of the members of the plan in force; {} where there are none.
    std::vector<negotiation::RequestPtr> planned;
    std::vector<Sizes> planned_sizes;
    size_t entered_members = 0;
    int64_t entered_sizes_differ = 0;  // members that were entered and are not what was planned
    std::map<std::string, int64_t> submitted;  // by name
    int64_t mispaired = 0;           // ran with another operation of that name than rank 0's
    std::vector<std::string> asked;  // "allreduce.a by id", "allreduce.b"
    int64_t sent = 0;                // messages
    std::string gave_up;
  };

  explicit AgreeingRanks(Rank size, Config config = {}, bool plans = true) {
    for (Rank rank = 0; rank < size; ++rank) {
      ranks.emplace_back();
      ranks.back().negotiator = std::make_unique<negotiation::Negotiator>(
          config, negotiation::GroupInfo{rank, size, 7, rank_names(size), 0, plans});
    }
  }

  negotiation::Negotiator& of(Rank rank) { return *ranks[static_cast<size_t>(rank)].negotiator; }

  // awaited: a thread waits for it at once.
  Op& submit(Rank rank, const wire::Request& request, bool awaited = false) {
    Member& me = ranks[static_cast<size_t>(rank)];
    me.ops.push_back(std::make_unique<Op>());
    Op& op = *me.ops.back();
    op.request = request;
    op.number = ++me.submitted[request.name];
    op.awaited = awaited;
    of(rank).on(negotiation::event::Submit{&op.request, plan::OpHandle(&op), at(now)});
    perform(rank);
    return op;
  }
  // All ranks submit these, and everything that follows from it has happened.
  void step(const std::vector<wire::Request>& requests) {
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      for (const wire::Request& request : requests) submit(static_cast<Rank>(rank), request);
    }
    run();
  }
  // What has been sent is heard.
  void deliver() {
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto rank = static_cast<Rank>(r);
      for (perform(rank); !ranks[r].inbox.empty(); perform(rank)) {
        const auto [from, message] = std::move(ranks[r].inbox.front());
        ranks[r].inbox.pop_front();
        of(rank).on(negotiation::event::Message{from, message, at(now)});
      }
      of(rank).on(negotiation::event::Tick{at(now)});
      perform(rank);
    }
  }
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto rank = static_cast<Rank>(r);
        of(rank).on(negotiation::event::Flush{at(now)});
        moved |= perform(rank);
        for (; !ranks[r].inbox.empty(); moved = true) {
          const auto [from, message] = std::move(ranks[r].inbox.front());
          ranks[r].inbox.pop_front();
          of(rank).on(negotiation::event::Message{from, message, at(now)});
          perform(rank);
        }
        negotiation::event::Tick tick{at(now)};
        if (of(rank).planning()) tick.plan = {ranks[r].ran, false, words(ranks[r].generation)};
        of(rank).on(tick);
        moved |= perform(rank);
      }
      moved |= run_entered();
    }
  }
  bool all_done() const {
    for (const Member& member : ranks)
      for (const auto& op : member.ops)
        if (!op->done) return false;
    return true;
  }

  std::vector<Member> ranks;
  double now = 0;

 private:
  bool perform(Rank rank) {
    Member& me = ranks[static_cast<size_t>(rank)];
    bool any = false;
    while (!me.negotiator->actions().empty()) {
      any = true;
      for (const negotiation::Action& next : std::exchange(me.negotiator->actions(), {}))
        std::visit([&](const auto& what) { perform(rank, &me, what); }, next);
    }
    return any;
  }
  // The last words of a generation, by rank.
  std::vector<std::optional<uint64_t>>& words(uint64_t generation) {
    auto& found = words_[generation];
    found.resize(ranks.size());
    return found;
  }
  // Batches of the plan run when all ranks have entered them.
  bool run_entered() {
    bool moved = false;
    for (Member& me : ranks) {
      const auto everywhere = [&] {
        for (const Member& other : ranks)
          if (other.generation != me.generation || other.entered.size() <= me.ran) return false;
        return true;
      };
      for (; everywhere(); ++me.ran, moved = true)
        for (size_t i = 0; i < me.entered[me.ran].size(); ++i) {
          const plan::OpHandle handle = me.entered[me.ran][i];
          const Op* first = ranks[0].entered[me.ran][i].as<Op>();
          if (handle.as<Op>()->number != first->number) ++me.mispaired;
          end(handle, {});
        }
    }
    return moved;
  }
  static void end(plan::OpHandle handle, const Status& status) {
    Op* op = handle.as<Op>();
    op->done = true;
    op->status = status;
  }

  void perform(Rank rank, Member* me, const negotiation::action::Send& send) {
    ++me->sent;
    for (size_t to = 0; to < ranks.size(); ++to) {
      const auto peer = static_cast<Rank>(to);
      if (send.to == peer || (send.to == negotiation::action::Send::kEveryone && peer != rank))
        ranks[to].inbox.emplace_back(rank, send.message);
    }
  }
  void perform(Rank, Member* me, const negotiation::action::Launch& launch) {
    me->launched.push_back(launch.batch);
    for (const negotiation::SizesPtr& sizes : launch.sizes)
      if (sizes != nullptr) me->sizes.push_back(*sizes);
    for (const auto& member : launch.members)
      if (member.neutral == nullptr) end(member.handle, {});
  }
  void perform(Rank, Member*, const negotiation::action::Finish& finish) {
    end(finish.handle, finish.status);
  }
  void perform(Rank, Member* me, const negotiation::action::Asked& asked) {
    me->asked.push_back(asked.handle.as<Op>()->request.name + (asked.by_id ? " by id" : ""));
  }
  void perform(Rank, Member* me, const negotiation::action::Hold& hold) {
    const Op* op = hold.handle.as<Op>();
    if (op->awaited) me->negotiator->on(negotiation::event::Awaited{op->request.name});
  }
  void perform(Rank, Member* me, const negotiation::action::AskSites& ask) {
    negotiation::event::Sites answer{{}, at(now)};
    for (const auto& question : ask.questions) answer.sites.push_back({question.name, "here"});
    me->negotiator->on(answer);
  }
  void perform(Rank, Member* me, const negotiation::action::GiveUp& end) {
    me->gave_up = end.verdict.message();
  }
  void perform(Rank, Member* me, const negotiation::action::BeginPlan& begin) {
    me->entered.clear();
    me->ran = 0;
    me->generation = begin.plan.generation;
    me->planned = begin.requests;
    me->entered_members = 0;
    me->planned_sizes.clear();
    for (const negotiation::SizesPtr& sizes : begin.sizes)
      me->planned_sizes.push_back(sizes == nullptr ? Sizes() : *sizes);
  }
  void perform(Rank, Member* me, const negotiation::action::EnterBatch& enter) {
    me->entered.emplace_back(enter.handles.begin(), enter.handles.end());
    for (const plan::OpHandle handle : enter.handles) {
      const size_t at = me->entered_members++ % me->planned.size();
      if (handle.as<Op>()->request != *me->planned[at]) ++me->entered_sizes_differ;
    }
  }
  void perform(Rank rank, Member* me, const negotiation::action::RevokePlan& revoke) {
    words(me->generation)[static_cast<size_t>(rank)] = revoke.last_word;
  }
  void perform(Rank, Member* me, const negotiation::action::EndPlan& end) {
    std::vector<plan::OpHandle> back;
    for (size_t n = end.first; n < me->entered.size(); ++n)
      back.insert(back.end(), me->entered[n].begin(), me->entered[n].end());
    me->negotiator->on(negotiation::event::Withdrawn{back, at(now)});
  }
  void perform(Rank, Member*, const negotiation::action::Note&) {}
  void perform(Rank, Member*, const negotiation::action::Blame&) {}
  void perform(Rank, Member*, const negotiation::action::Warn&) {}
  void perform(Rank, Member*, const negotiation::action::Arrived&) {}

  std::map<uint64_t, std::vector<std::optional<uint64_t>>> words_;
};

}  // namespace rueda::testing
