#include "tests/simulation/sim_rank.h"

#include <algorithm>

#include "tests/runtime/requests.h"
#include "tests/simulation/sim_messages.h"
#include "tests/simulation/sim_words.h"

namespace rueda::testing {

namespace event = negotiation::event;

namespace {

std::unique_ptr<SimChannel> make_channel(const Job& job, SimWorld* world, Rank rank,
                                         SimChannel::Doors doors) {
  if (job.on_one_host()) return std::make_unique<SimWords>(world, rank, std::move(doors));
  return std::make_unique<SimMessages>(world, rank, job.ranks_per_host, std::move(doors));
}

}  // namespace

SimRank::SimRank(SimWorld* world, Rank rank, const Job* job,
                 std::vector<std::unique_ptr<SimRank>>* all)
    : world_(world),
      rank_(rank),
      job_(job),
      all_(all),
      channel_(make_channel(*job, world, rank,
                            {[this] { poke(); }, [this](OpHandle handle) { finish(handle, {}); },
                             [](OpHandle handle) {
                               const Op* op = handle.as<Op>();
                               return op->request.name + "@" + std::to_string(op->step);
                             },
                             [all](Rank peer) -> SimChannel& {
                               return (*all)[static_cast<size_t>(peer)]->channel();
                             }})),
      negotiator_(job->config, {rank, job->size, 7, rank_names(job->size), 0, true}),
      goodbye_(static_cast<size_t>(job->size), false) {}

void SimRank::start() { user(); }

void SimRank::finish(Op* op, const Status& status) {
  if (op->done) world_->fail(op->request.name + " ended twice");
  op->done = true;
  op->status = status;
  check_status(*op);
  user();
}

// Without a fault and early leave every tensor is right, but those that were submitted wrongly.
void SimRank::check_status(const Op& op) {
  if (op.status.ok() || job_->someone_leaves || world_->faulty) return;
  const bool mismatch = op.status.code() == Code::kFailedPrecondition && job_->mismatches > 0 &&
                        op.request.name.find("t0") != std::string::npos;
  const bool root_joined = op.status.code() == Code::kFailedPrecondition && job_->joins &&
                           op.request.kind == CollectiveKind::kBroadcast &&
                           op.status.message().find("has joined") != std::string::npos;
  if (!mismatch && !root_joined) world_->fail(op.request.name + " failed: " + op.status.message());
}

// ---- the user's thread ----

void SimRank::user() {
  if (user_scheduled_ || dead_) return;
  user_scheduled_ = true;
  world_->after(static_cast<int64_t>(world_->below(500)), [this] {
    user_scheduled_ = false;
    while (!dead_ && user_step()) {
    }
  });
}

SimRank::Op* SimRank::newest(const std::string& name) {
  for (auto it = ops_.rbegin(); it != ops_.rend(); ++it) {
    if ((*it)->request.name == name) return it->get();
  }
  return nullptr;
}

// True: goes on at once.
bool SimRank::user_step() {
  const auto& program = job_->ranks[static_cast<size_t>(rank_)];
  if (closed_ || thinking_ || cursor_ >= program.size()) return false;
  const Action& action = program[cursor_];
  while (current_step_ < action.step) {
    auto& by_step = (*all_)[0]->messages_by_step;
    const auto step = static_cast<size_t>(current_step_++);
    if (by_step.size() <= step) by_step.resize(step + 1);
    by_step[step] = world_->control_messages;
  }
  switch (action.kind) {
    case Action::Kind::kSubmit: {
      for (const wire::Request& request : action.requests) {
        ops_.push_back(std::make_unique<Op>());
        ops_.back()->request = request;
        ops_.back()->step = action.step;
        if (broken_) {
          finish(ops_.back().get(), verdict_);
        } else {
          queue_.push_back(ops_.back().get());
        }
      }
      ++cursor_;
      poke();
      return true;
    }
    case Action::Kind::kWait:
    case Action::Kind::kPoll: {
      Op* op = newest(action.name);
      if (!op->done) {
        if (action.kind == Action::Kind::kWait && !op->awaited) {
          op->awaited = true;
          if (op->may_batch) {
            woken_ = true;
            poke();
          }
        }
        return false;
      }
      const bool goes_on = op->status.ok() || op->status.code() == Code::kFailedPrecondition;
      cursor_ = goes_on ? cursor_ + 1 : program.size() - 1;  // an exception: leave
      return true;
    }
    case Action::Kind::kThink:
      ++cursor_;
      thinking_ = true;
      world_->after(action.think_ns > 0 ? action.think_ns : world_->delay(), [this] {
        thinking_ = false;
        user();
      });
      return false;
    case Action::Kind::kLeave:
      closed_ = true;
      world_->first_to_leave_ns = std::min(world_->first_to_leave_ns, world_->now());
      poke();
      return false;
  }
  return false;
}

// ---- the coordinator, in turns ----

void SimRank::poke() {
  if (poked_ || dead_ || ended_) return;
  poked_ = true;
  world_->after(static_cast<int64_t>(world_->below(1'000)), [this] {
    poked_ = false;
    step();
  });
}

bool SimRank::take_submissions() {
  std::vector<Op*> blocked;
  if (std::exchange(woken_, false)) {
    for (const auto& op : ops_) {
      if (op->awaited && op->may_batch && !op->done) blocked.push_back(op.get());
    }
  }
  bool moved = false;
  do {
    blocked_already_ = false;
    while (!queue_.empty()) {
      Op* op = queue_.front();
      queue_.pop_front();
      moved = true;
      take(op);
    }
  } while (blocked_already_ && !queue_.empty());
  for (const Op* op : blocked) negotiator_.on(event::Awaited{op->request.name});
  negotiator_.on(event::Flush{world_->time()});
  return perform() || moved;
}

void SimRank::take(Op* op) {
  if (broken_) return finish(op, verdict_);
  const auto id = negotiator_.id_of(op->request);
  if (id && world_->one_in(2)) {
    negotiator_.on(event::SubmitCached{*id, &op->request, OpHandle(op), world_->time()});
  } else {
    negotiator_.on(event::Submit{&op->request, OpHandle(op), world_->time()});
  }
  perform();
}

void SimRank::step() {
  if (dead_ || ended_) return;
  bool moved = take_submissions();
  while (!inbox_.empty() && !broken_) {
    const auto [from, message] = inbox_.front();
    inbox_.pop_front();
    moved = true;
    if (message.empty()) {
      negotiator_.on(event::PeerLeft{from, world_->time()});
    } else {
      negotiator_.on(event::Message{from, message, world_->time()});
    }
    perform();
  }
  negotiator_.on(event::Tick{world_->time(), channel_->progress()});
  moved |= perform();
  if (closed_) leave_as_far_as_it_goes();
  if (moved) poke();
  if (const auto deadline = negotiator_.next_deadline(channel_->finished()); deadline && !ended_) {
    const int64_t rest = std::max<int64_t>(0, (*deadline - world_->time()).count());
    world_->after(rest + 1, [this] { poke(); });
  }
}

// As the coordinator does it.
void SimRank::leave_as_far_as_it_goes() {
  if (broken_) {
    ended_ = true;
    return;
  }
  if (!leaving_) {
    leaving_ = true;
    take_submissions();
    negotiator_.on(event::Leave{world_->time()});
    perform();
    poke();
  }
  if (!negotiator_.root_left()) return;
  if (!negotiator_.idle()) {
    negotiator_.on(event::Drop{cancelled("shut down on this rank")});
    perform();
  }
  if (running_count_ > 0 || !channel_->idle()) return;
  ended_ = true;
  for (Rank peer = 0; peer < world_->size; ++peer) {
    if (peer == rank_) continue;
    send(peer, "");
    --world_->control_messages;
  }
}

void SimRank::receive(Rank from, const std::string& message) {
  if (dead_ || ended_) return;
  if (message.empty()) goodbye_[static_cast<size_t>(from)] = true;
  inbox_.emplace_back(from, message);
  poke();
}

// ---- faults

// Its peers hear what it has said for a while, then that it has ended.
void SimRank::crash() {
  if (ended_ || dead_) return;
  dead_ = true;
  world_->faulty = true;
  channel_->die();
  for (const auto& peer : *all_) {
    if (peer.get() != this)
      peer->lose(rank_, world_->now() + world_->delay(),
                 "rank " + std::to_string(rank_) + " was lost");
  }
}

void SimRank::cut(Rank peer) {
  world_->faulty = true;
  lose(
      peer, world_->now() + world_->delay(),
      "rank " + std::to_string(rank_) + " has lost its connection to rank " + std::to_string(peer));
}

void SimRank::lose(Rank peer, int64_t heard_until, const std::string& why) {
  world_->end_connection(peer, rank_, heard_until);
  world_->after(heard_until - world_->now() + world_->delay(), [this, peer, why] {
    if (!goodbye_[static_cast<size_t>(peer)]) give_up(unavailable(why));
  });
}

// The first verdict wins, and goes to all whom this rank can reach.
void SimRank::give_up(const Status& verdict) {
  if (!lives()) return;
  broken_ = true;
  verdict_ = verdict;
  for (const auto& other : *all_) {
    SimRank* peer = other.get();
    if (peer == this || world_->bug == Bug::kKeepsLossToItself) continue;
    world_->carry(rank_, peer->rank_, Stream::kControl,
                  [peer, verdict] { peer->give_up(verdict); });
  }
  for (const OpHandle handle : channel_->fail_all()) finish(handle, verdict);
  for (const auto& batch : std::exchange(running_, {})) {
    for (Op* op : batch) finish(op, verdict);
  }
  negotiator_.on(event::BreakDown{verdict});
  perform();
  for (Op* op : std::exchange(queue_, {})) finish(op, verdict);
  user();
  poke();
}

void SimRank::retune() {
  if (dead_ || ended_ || broken_) return;
  negotiator_.on(event::Retune{});
  perform();
  poke();
  if (job_->retune_every > 0) world_->after(job_->retune_every, [this] { retune(); });
}

std::string SimRank::unfinished() const {
  if (dead_) return "";
  if (!ended_) {
    std::string text =
        "rank " + std::to_string(rank_) + " has not ended: step " + std::to_string(current_step_) +
        (closed_ ? ", leaving" : "") + (negotiator_.planning() ? ", in a plan" : "") +
        (negotiator_.root_left() ? ", root left" : "") + (channel_->idle() ? "" : ", channel busy");
    for (const auto& op : ops_) {
      if (!op->done) text += ", waits for " + op->request.name + "@" + std::to_string(op->step);
    }
    return text;
  }
  for (const auto* all : {&ops_, &neutrals_}) {
    for (const auto& op : *all) {
      if (!op->done)
        return "rank " + std::to_string(rank_) + ": " + op->request.name + " never ended";
    }
  }
  return "";
}

// ---- the job ----

SimResult simulate(const Job& job, uint64_t seed, Bug bug) {
  SimWorld world(seed, job.size, job.one_stream);
  world.bug = bug;
  std::vector<std::unique_ptr<SimRank>> ranks;
  for (Rank rank = 0; rank < job.size; ++rank)
    ranks.push_back(std::make_unique<SimRank>(&world, rank, &job, &ranks));
  for (const auto& rank : ranks) rank->start();
  SimResult result;
  const auto at = [&](int64_t when, const std::function<void()>& fault) {
    if (when < 0) return;
    world.after(when, [&, fault] {
      for (const auto& rank : ranks) result.hit_plan |= rank->channel().in_plan();
      fault();
    });
  };
  at(job.crash_at, [&] { ranks[static_cast<size_t>(job.crasher)]->crash(); });
  at(job.cut.at, [&] {
    ranks[static_cast<size_t>(job.cut.one)]->cut(job.cut.other);
    ranks[static_cast<size_t>(job.cut.other)]->cut(job.cut.one);
  });
  if (job.retune_at >= 0) world.after(job.retune_at, [&] { ranks[0]->retune(); });
  world.run(int64_t{300} * 1'000'000'000);
  for (const auto& rank : ranks) {
    const std::string left_over = rank->unfinished();
    if (!left_over.empty()) world.failure += (world.failure.empty() ? "" : "; ") + left_over;
  }
  for (const auto& [generation, model] : world.models) {
    if (!world.failure.empty()) break;
    world.failure = model.broken();
    if (world.failure.empty() && !world.faulty) world.failure = model.wrong_end();
  }
  result.failure = world.failure;
  result.control_messages = world.control_messages;
  result.planned_runs = world.planned_runs;
  result.revocations = world.revocations;
  result.messages_by_step = ranks[0]->messages_by_step;
  result.notes = ranks[0]->notes;
  result.first_to_leave_ns = world.first_to_leave_ns;
  result.late_data = world.late_data;
  result.early_data = world.early_data;
  result.overtaken = world.overtaken;
  for (const auto& rank : ranks) {
    result.neutrals += rank->neutrals();
    result.evictions += rank->evictions();
    result.broken_ranks += rank->broken();
  }
  return result;
}

}  // namespace rueda::testing
