// A model of the schedule: how long a pass takes where arithmetic and bytes take time and nothing
// else does. Each rank computes at one rate and sends over one link, message by message in the
// order in which it has begun to, once their receives have begun as well. No clock.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/plan.h"
#include "attention/program.h"

namespace rueda::testing {

class ScheduleModel {
 public:
  ScheduleModel(const attention::AttentionSpec& spec, bool backward) : backward_(backward) {
    for (Rank rank = 0; rank < spec.ranks; ++rank)
      ranks_.emplace_back(attention::make_plan(spec, rank).value(), backward);
  }

  // Seconds until the last rank has ended. A rank's mean arithmetic takes 1, its mean bytes `link`.
  double seconds(double link) {
    double work = 0, bytes = 0;
    for (const Member& rank : ranks_) {
      for (const attention::Instruction& one : rank.program.list) {
        if (one.op == attention::Op::kAttend) work += work_of(rank, one);
        if (one.op == attention::Op::kSend) bytes += bytes_of(rank, one);
      }
    }
    const auto count = static_cast<double>(ranks_.size());
    work_rate_ = work / count;
    byte_rate_ = bytes / count / link;
    for (Member& rank : ranks_) rank.begin();
    channels_.clear();
    for (bool moved = true; moved;) {
      moved = false;
      for (Member& rank : ranks_) moved = compute(&rank) || moved;
      moved = send_next() || moved;
    }
    double end = 0;
    for (const Member& rank : ranks_) {
      if (rank.next < rank.program.list.size()) return std::numeric_limits<double>::infinity();
      end = std::max(end, rank.now);
    }
    return end;
  }

  // The share of the shorter of arithmetic and messages that the other hides, where both take as
  // long: what `rueda bench attention --only A9` measures of two ranks.
  double overlap() { return 2 - seconds(1); }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Message {
    double posted = kNever, awaited = kNever, ended = kNever;
    double bytes = 0;
  };
  struct Member {
    Member(attention::AttentionPlan made, bool backward)
        : plan(std::move(made)), program(attention::program_of(plan, backward)) {}
    void begin() {
      next = 0;
      now = link_free = 0;
      messages.assign(program.list.size(), nullptr);
    }
    attention::AttentionPlan plan;
    const attention::Program& program;
    size_t next = 0;
    double now = 0, link_free = 0;
    std::vector<Message*> messages;  // by instruction
  };
  using Channel = std::tuple<Rank, Rank, bool>;  // from, to, answers
  struct Queue {
    std::deque<Message> all;
    size_t sent = 0, received = 0;
    Message* at(size_t number) {
      while (all.size() <= number) all.emplace_back();
      return &all[number];
    }
  };

  double work_of(const Member& rank, const attention::Instruction& one) const {
    const auto& ring = backward_ ? rank.plan.backward : rank.plan.forward;
    double pairs = 0;
    const auto add = [&](const auto& tiles) {
      for (const attention::Tile& tile : tiles) {
        for (int64_t h = tile.head_begin; h < tile.head_end; h += tile.head_step)
          pairs += static_cast<double>(tile.pairs *
                                       rank.plan.heads.queries_of(h, rank.plan.head_group()));
      }
    };
    if (one.hop < 0) {
      add(rank.plan.local_tiles(ring, one.key));
    } else {
      add(ring.receives[static_cast<size_t>(one.hop)].tiles);
    }
    return pairs;
  }
  static double bytes_of(const Member& rank, const attention::Instruction& one) {
    return static_cast<double>(rank.program.buffers[static_cast<size_t>(one.message)].bytes);
  }

  // As far as it comes with the messages that have ended by now. True if it has moved.
  bool compute(Member* rank) {
    const size_t before = rank->next;
    for (; rank->next < rank->program.list.size(); ++rank->next) {
      const attention::Instruction& one = rank->program.list[rank->next];
      double from = rank->now;
      for (const int earlier : one.after) {
        const Message* const message = rank->messages[static_cast<size_t>(earlier)];
        if (message != nullptr) from = std::max(from, message->ended);
      }
      if (from == kNever) break;
      rank->now = from;
      if (one.op == attention::Op::kAttend) rank->now += work_of(*rank, one) / work_rate_;
      if (one.moves()) begin(rank, one);
    }
    return rank->next != before;
  }
  void begin(Member* rank, const attention::Instruction& one) {
    const bool sends = one.op == attention::Op::kSend;
    const Rank me = rank->plan.rank;
    const Channel channel =
        sends ? Channel{me, one.peer, one.answer} : Channel{one.peer, me, one.answer};
    Queue& queue = channels_[channel];
    Message* const message = queue.at(sends ? queue.sent++ : queue.received++);
    (sends ? message->posted : message->awaited) = rank->now;
    if (sends) message->bytes = bytes_of(*rank, one);
    rank->messages[rank->next] = message;
  }

  // Of all messages that can begin the one that does first. Nobody computes any further before one
  // more has ended, so no earlier one will come.
  bool send_next() {
    Message* first = nullptr;
    Member* sender = nullptr;
    auto best = std::pair(kNever, kNever);
    for (auto& [channel, queue] : channels_) {
      for (Message& message : queue.all) {
        if (message.ended != kNever || message.posted == kNever || message.awaited == kNever)
          continue;
        Member& from = ranks_[static_cast<size_t>(std::get<0>(channel))];
        const double begins = std::max({from.link_free, message.posted, message.awaited});
        if (std::pair(begins, message.posted) < best) {
          best = {begins, message.posted};
          first = &message;
          sender = &from;
        }
        break;  // in their order
      }
    }
    if (first == nullptr) return false;
    first->ended = sender->link_free = best.first + first->bytes / byte_rate_;
    return true;
  }

  const bool backward_;
  std::deque<Member> ranks_;
  std::map<Channel, Queue> channels_;
  double work_rate_ = 1, byte_rate_ = 1;
};

}  // namespace rueda::testing
