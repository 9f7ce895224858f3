#include "tests/simulation/membership_world.h"

namespace rueda::testing {

using wire::EnterCause;
using wire::EpochAnswer;
using wire::EpochBranch;

namespace {
constexpr double kCalm = 20;  // no faults from then on
constexpr double kEnd = 45;

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9e3779b97f4a7c15U + b + 0x7f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  return z ^ (z >> 27U);
}
}  // namespace

uint64_t MembershipWorld::next() {
  random_ = mix(random_, 17);
  return random_ ^ (random_ >> 31U);
}

MembershipWorld::MembershipWorld(uint64_t seed, MemberBug bug, DeciderBug decider_bug)
    : random_(mix(seed, 1)), bug_(bug), decider_bug_(decider_bug) {
  policy_.elastic = true;
  policy_.start_np = 1 + static_cast<int>(below(4));
  policy_.min_np = 1 + static_cast<int>(below(static_cast<uint64_t>(policy_.start_np)));
  policy_.max_np = below(2) != 0 ? policy_.start_np + static_cast<int>(below(3)) : 0;
  policy_.on_failure = static_cast<ms::OnFailure>(below(3));
  policy_.on_join = static_cast<ms::OnJoin>(below(2));
  policy_.spares = static_cast<int>(below(3) == 0);
  policy_.most_heals_without_commit = 1000;
  policy_.most_replacements = below(2) != 0 ? 3 : 1000;
  policy_.elastic_timeout = ms::Seconds(8);
  if (below(2) != 0) policy_.cooldown = {{1, 3}};
  policy_.seed = seed;
  decider_ = std::make_unique<ms::MembershipDecider>(policy_);
  const int count = 1 + static_cast<int>(below(4));
  for (int h = 0; h < count; ++h) hosts_["h" + std::to_string(h)] = 1 + static_cast<int>(below(3));
}

void MembershipWorld::discover() {
  ms::HostsFound found;
  for (const auto& [name, slots] : hosts_) {
    if (gone_hosts_.count(name) == 0) found.hosts.push_back({name, slots, "", 0});
  }
  tell(found);
}

std::string MembershipWorld::run() {
  for (uint64_t i = below(12); i > 0; --i) at(random() * kCalm, [this] { fault(); });
  at(kCalm, [this] {
    calm_ = true;
    last_commit_ = now_;
  });
  discover();
  for (int steps = 0; !queue_.empty() && broken_.empty() && !ended_; ++steps) {
    const auto first = queue_.begin();
    now_ = first->first;
    if (now_ > kEnd) break;
    const std::function<void()> what = std::move(first->second);
    queue_.erase(first);
    what();
    if (steps > 2'000'000) broken("it never comes to rest");
    if (calm_ && now_ - last_commit_ > 10 && !ended_)
      broken("no commit within 10 s after the faults");
  }
  if (!ended_ && queue_.empty()) broken("everybody waits for ever");
  return broken_;
}

void MembershipWorld::tell(const ms::Event& event) {
  if (ended_) return;
  std::vector<ms::Action> actions = decider_->on(event, time());
  if (decider_bug_ != DeciderBug::kNone) plant(actions);
  bool must_store = record_.empty();
  for (const ms::Action& action : actions) {
    const auto* answer = std::get_if<ms::Answer>(&action);
    const bool is_new = answer != nullptr && answer->common->answer == EpochAnswer::kEnter &&
                        answer->common->epoch > last_epoch_;
    must_store |= is_new || std::get_if<ms::StartMember>(&action) != nullptr;
  }
  if (decider_bug_ == DeciderBug::kOldRecord) must_store = record_.empty();
  if (must_store || (random() < 0.2 && decider_bug_ != DeciderBug::kOldRecord))
    record_ = decider_->record();
  if (must_store && epochs() > 0 && !calm_ && random() < 0.02) {  // its owner ends before it acts
    ++faults_;
    return take_over();
  }
  for (const ms::Action& action : actions) perform(action);
  const auto due = decider_->next_deadline();
  if (!due || ended_) return;
  const double when =
      std::max(now_, ms::Seconds(*due - ms::Time(std::chrono::seconds(100))).count()) + 1e-6;
  const int ticket = ++ticks_due_;
  at(when, [this, ticket] {
    if (ticket == ticks_due_) tell(ms::Tick{});
  });
}

void MembershipWorld::perform(const ms::Action& action) {
  const auto soon = [this] { return now_ + 1e-4 + random() * 0.005; };
  if (const auto* start = std::get_if<ms::StartMember>(&action)) {
    if (!seen_.insert(start->member).second) {  // said again by who has taken over
      const Process& has = processes_[start->member];
      if (has.host != start->host || has.slot != start->slot)
        broken("a member's number was given twice");
      return;
    }
    if (lost_hosts_.count(start->host) != 0) broken("a rank is started on a host that is lost");
    check_slot(*start);
    Process& process = processes_[start->member];
    process.host = start->host;
    process.slot = start->slot;
    process.cut = gone_hosts_.count(start->host) != 0;  // and the decider does not know it yet
    const ms::MemberId id = start->member;
    at(now_ + 0.05 + random() * 0.5, [this, id] { enter(id, EnterCause::kFirst); });
  } else if (const auto* stop = std::get_if<ms::StopMember>(&action)) {
    const ms::MemberId id = stop->member;
    at(soon(), [this, id] { kill(id); });
  } else if (const auto* end = std::get_if<ms::EndEpoch>(&action)) {
    const uint64_t epoch = end->epoch;
    if (decider_bug_ == DeciderBug::kDoesNotWait) {
      for (const auto& [id, process] : std::map<ms::MemberId, Process>(processes_)) {
        if (!process.runs || process.cut || !process.in_epoch) continue;
        wire::Standing standing = standing_of(id, EnterCause::kEpochEnded);
        standing.epoch = epoch;
        at(now_, [this, standing] { tell(ms::MemberEnters{standing.member, standing}); });
      }
      return;
    }
    for (const auto& [id, process] : processes_) {
      const ms::MemberId member = id;
      at(soon(), [this, member, epoch] {
        Process& p = processes_[member];
        if (!p.cut && p.in_epoch && p.epoch->epoch <= epoch)
          leave_epoch(member, EnterCause::kEpochEnded);
      });
    }
  } else if (const auto* answer = std::get_if<ms::Answer>(&action)) {
    if (answer->common->answer == EpochAnswer::kEnter && answer->common != newest_)
      check(*answer->common), newest_ = answer->common;
    const ms::Answer copy = *answer;
    Process& to = processes_[copy.member];
    to.last_sent = std::max(to.last_sent, soon());
    at(to.last_sent, [this, copy] { deliver(copy); });
  } else if (const auto* words = std::get_if<ms::Announce>(&action)) {
    for (const ms::MemberId id : words->members) {
      at(soon(), [this, id, serial = words->serial] {
        Process& p = processes_[id];
        if (!p.cut) p.announced = std::max(p.announced, serial);
      });
    }
  } else if (std::get_if<ms::EndJob>(&action) != nullptr) {
    ended_ = true;
  }
}

void MembershipWorld::deliver(const ms::Answer& answer) {
  const ms::MemberId id = answer.member;
  Process& p = processes_[id];
  if (!p.runs || p.cut || !p.waits) return;
  p.waits = false;
  if (answer.common->answer == EpochAnswer::kProvisional)
    return at(now_ + random() * 0.3, [this, id] { enter(id, EnterCause::kReady); });
  if (answer.common->answer != EpochAnswer::kEnter) {
    p.runs = false;
    return at(now_ + 0.01, [this, id] { tell(ms::MemberEnded{id, 0, false, ""}); });
  }
  p.epoch = answer.common;
  p.memory = answer.common->epoch == last_epoch_ ? memory_ : p.memory;
  p.in_epoch = true;
  p.synced = false;
  p.word.clear();
  p.entered = 0;
  at(now_ + 0.001, [this, id] { train(id); });
}

// Each decision, by the rules of the model.
void MembershipWorld::check(const wire::NewEpoch& epoch) {
  if (newest_ && epoch == *newest_) return;  // as the record has it
  std::set<ms::MemberId> before, now;
  if (newest_) {
    for (const wire::EpochMember& member : newest_->members) before.insert(member.member);
  }
  for (const wire::EpochMember& member : epoch.members) now.insert(member.member);
  DecidedEpoch words;
  words.last_number = words.newest_told = last_epoch_;
  words.number = epoch.epoch;
  words.target = epoch.target;
  words.acknowledged = acknowledged_.size();
  words.fresh = epoch.branch == EpochBranch::kFresh;
  words.fresh_memory = epoch.fresh_memory;
  for (const auto& [id, p] : processes_) {
    if (now.count(id) != 0 && p.in_epoch && p.runs && !p.cut && p.epoch->epoch == last_epoch_)
      words.awaits_somebody = true;
    if (p.writes && !p.cut && now.count(id) == 0 && p.memory == memory_) words.others_write = true;
  }
  const char* rule = broken_rule(words, epoch.members.size(), [&](size_t rank) {
    const wire::EpochMember& member = epoch.members[rank];
    const Process& p = processes_[member.member];
    return DecidedMember{before.count(member.member) != 0, member.has_target, p.has_state,
                         p.history.size()};
  });
  if (*rule != 0) broken(rule);
  if (epoch.size != static_cast<int32_t>(now.size())) broken("a member has two ranks");
  if (policy_.max_np > 0 && epoch.size > std::max(policy_.max_np, policy_.start_np))
    broken("more ranks than max_np");
  last_epoch_ = epoch.epoch;
  memory_ += epoch.fresh_memory ? 1 : 0;
}

void MembershipWorld::check_slot(const ms::StartMember& start) {
  for (const auto& [id, p] : processes_) {
    if (p.host != start.host || p.slot != start.slot || p.cut) continue;
    if (p.ends) broken("a slot is used while its old threads run");
  }
}

// What a decider that errs would have said instead.
void MembershipWorld::plant(std::vector<ms::Action>& actions) {
  std::shared_ptr<const wire::NewEpoch> was;
  std::shared_ptr<wire::NewEpoch> other;
  for (ms::Action& action : actions) {
    auto* answer = std::get_if<ms::Answer>(&action);
    if (answer == nullptr || answer->common->answer != EpochAnswer::kEnter) continue;
    if (answer->common->epoch <= 1 || answer->common == newest_) continue;
    if (answer->common != was) {
      was = answer->common;
      other = std::make_shared<wire::NewEpoch>(*was);
      switch (decider_bug_) {
        case DeciderBug::kOldNumber: other->epoch = last_epoch_; break;
        case DeciderBug::kLastIsRoot:
          std::swap(other->members.front(), other->members.back());
          break;
        case DeciderBug::kAllAreSources:
          for (wire::EpochMember& member : other->members) member.has_target = true;
          break;
        case DeciderBug::kTargetIsOlder: other->target -= other->target > 0 ? 1 : 0; break;
        case DeciderBug::kBeginsAnew:
          other->branch = EpochBranch::kFresh;
          other->target = 0;
          for (wire::EpochMember& member : other->members) member.has_target = false;
          break;
        case DeciderBug::kNoFreshMemory: other->fresh_memory = false; break;
        default: return;
      }
    }
    answer->common = other;
  }
}

// What it says of itself.
wire::Standing MembershipWorld::standing_of(ms::MemberId id, EnterCause cause) {
  const Process& p = processes_[id];
  const bool claims = bug_ == MemberBug::kClaimsState;
  wire::Standing standing;
  standing.member = id;
  standing.epoch = p.epoch ? p.epoch->epoch : 0;
  standing.cause = cause;
  standing.has_state = p.has_state || claims;
  standing.commits = p.history.size() + (claims ? 1 : 0);
  standing.version = "1";
  return standing;
}

void MembershipWorld::enter(ms::MemberId id, EnterCause cause) {
  Process& p = processes_[id];
  if (!p.runs) return;
  p.waits = true;
  p.asked = cause;
  const wire::Standing standing = standing_of(id, cause);
  p.last_sent = std::max(p.last_sent, now_ + random() * 0.005);
  at(p.last_sent, [this, standing] {
    const Process& from = processes_[standing.member];
    if (from.runs && !from.cut) tell(ms::MemberEnters{standing.member, standing});
  });
}

void MembershipWorld::leave_epoch(ms::MemberId id, EnterCause cause) {
  processes_[id].in_epoch = false;
  enter(id, cause);
}

// One look at the world by one member, as often as it lives in an epoch.
void MembershipWorld::train(ms::MemberId id) {
  Process& p = processes_[id];
  if (!p.runs || !p.in_epoch) return;
  at(now_ + 0.01 + random() * 0.02, [this, id, number = p.epoch->epoch] {
    const Process& again = processes_[id];
    if (again.in_epoch && again.epoch->epoch == number) train(id);
  });
  if (now_ < p.stalled_until) return;
  uint64_t least = ~0ULL, words = 0;
  for (const wire::EpochMember& word : p.epoch->members) {
    const Process& other = processes_[word.member];
    if (!other.runs && random() < 0.5) return leave_epoch(id, EnterCause::kEpochEnded);
    // Its words stay readable when it has left.
    const bool is_read = other.epoch && other.epoch->epoch == p.epoch->epoch && sees(p, other);
    least = std::min(least, is_read ? other.entered : 0);
    const auto it = other.word.find(p.entered);
    if (is_read && it != other.word.end()) words = std::max(words, it->second);
  }
  if (!p.synced) {
    const bool fresh = p.epoch->branch == wire::EpochBranch::kFresh;
    for (size_t rank = 0; rank < p.epoch->members.size() && !p.synced; ++rank) {
      const wire::EpochMember& word = p.epoch->members[rank];
      const Process& source = processes_[word.member];
      if (word.member == id && (word.has_target || (fresh && rank == 0))) p.synced = true;
      const bool can = fresh ? rank == 0 : word.has_target;
      if (p.synced || !can || !source.runs || !sees(p, source) || !source.in_epoch ||
          source.epoch->epoch != p.epoch->epoch || source.history.size() < p.epoch->target)
        continue;
      p.history.assign(source.history.begin(),
                       source.history.begin() + static_cast<int64_t>(p.epoch->target));
      p.synced = true;
    }
    if (!p.synced) return;
    if (fresh) p.history.clear();
    p.has_state = true;
    p.word[p.entered = p.epoch->target + 1] = p.announced;
    return;
  }
  // It has entered step n; all have, so it applies n.
  const uint64_t n = p.entered;
  if (p.history.size() >= n || (least < n && bug_ != MemberBug::kAppliesEarly)) return;
  if (least >= n && n >= 2 && n - 1 > acknowledged_.size()) {  // all have applied n - 1
    if (acknowledged_.size() + 1 != n - 1 && acknowledged_.size() < p.epoch->target)
      acknowledged_.assign(p.history.begin(), p.history.begin() + static_cast<int64_t>(n - 2));
    while (acknowledged_.size() < n - 1) acknowledged_.push_back(p.history[acknowledged_.size()]);
    if (calm_) last_commit_ = now_;
  }
  p.history.push_back(mix(p.history.empty() ? 0 : p.history.back(), mix(p.epoch->epoch, n)));
  if (bug_ == MemberBug::kAcknowledgesAlone && acknowledged_.size() + 1 == n)
    acknowledged_.push_back(p.history.back());
  for (size_t k = 0; k < std::min(acknowledged_.size(), p.history.size()); ++k) {
    if (acknowledged_[k] != p.history[k]) return broken("there are two histories");
  }
  if (words > p.epoch->announced) return leave_epoch(id, EnterCause::kInterrupted);
  p.word[n + 1] = p.announced;
  p.entered = n + 1;
}

ms::MemberId MembershipWorld::some_member() {
  auto it = processes_.begin();
  std::advance(it, static_cast<int64_t>(below(processes_.size())));
  return it->first;
}

void MembershipWorld::kill(ms::MemberId id) {
  Process& p = processes_[id];
  if (!p.runs) return;
  p.runs = false;
  if (p.cut) return;
  p.ends = true;
  p.writes = p.in_epoch;  // who has left its epoch has nothing under way
  if (random() < 0.7) {
    at(now_ + random() * 0.01, [this, id] {
      tell(ms::MemberLost{id, "killed"});
      if (decider_bug_ == DeciderBug::kFencesAtOnce) tell(ms::MemberFenced{id});
    });
  }
  at(now_ + 0.01 + (random() < 0.1 ? 3.0 : 0.02) * random(), [this, id] {
    processes_[id].ends = processes_[id].writes = false;
    tell(ms::MemberEnded{id, 137, true, "killed"});
  });
}

void MembershipWorld::fault() {
  if (processes_.empty() || ended_) return;
  ++faults_;
  const ms::MemberId id = some_member();
  const std::string host = processes_[id].host;
  switch (below(8)) {
    case 0:
    case 1:
    case 2: return kill(id);
    case 3: processes_[id].stalled_until = now_ + 3 * random(); return;
    case 4: {  // a host is cut off; what runs there runs on
      if (gone_hosts_.count(host) != 0) return;
      gone_hosts_.insert(host);
      for (auto& [member, process] : processes_) process.cut |= process.host == host;
      return at(now_ + 1 + random(), [this, host] {
        lost_hosts_.insert(host);
        tell(ms::HostLost{host, "it is silent"});
        discover();
      });
    }
    case 5: return tell(ms::HostDrained{host});
    case 6: {
      hosts_["n" + std::to_string(below(3))] = 1 + static_cast<int>(below(2));
      return discover();
    }
    default: return take_over();
  }
}

// From the record, as old as it may be. Losses are told again; who waits asks again.
void MembershipWorld::take_over() {
  decider_ = ms::MembershipDecider::resume(policy_, record_);
  if (decider_ == nullptr) return broken("a record cannot be read");
  tell(ms::Tick{});
  for (const std::string& host : lost_hosts_) tell(ms::HostLost{host, "it is silent"});
  discover();
  std::vector<ms::MemberId> waiting;
  for (const auto& [id, process] : std::map<ms::MemberId, Process>(processes_)) {
    if (process.runs && process.waits) waiting.push_back(id);
    if (!process.runs && !process.ends && !process.cut)
      tell(ms::MemberEnded{id, 137, true, "killed"});
  }
  for (const ms::MemberId id : waiting) enter(id, processes_[id].asked);
}

}  // namespace rueda::testing
