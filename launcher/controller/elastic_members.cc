#include "launcher/controller/elastic_members.h"

#include <algorithm>
#include <cstdio>

#include "launcher/command/options.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::seconds kSlowLook{1};

Order order_of(Order::Kind kind) {
  Order order;
  order.kind = kind;
  return order;
}

}  // namespace

ElasticMembers::ElasticMembers(const ElasticPlan& plan, rendezvous::StoreServer* store, Doors doors)
    : plan_(plan),
      store_(store),
      doors_(std::move(doors)),
      decider_(plan.policy),
      takes_over_(doors_.takes_over) {
  if (plan.discovery) discovery_.emplace(*plan.discovery);
  if (plan.evict_slow) slow_ranks_.emplace(*plan.evict_slow);
}

// ---- what happens -------------------------------------------------------------------------------

void ElasticMembers::started(const MemberStart& start, pid_t pid, const std::string& error) {
  members_[start.member].pid = pid;
  members_[start.member].how = error;
  events_.push_back(membership::MemberStarted{start.member, pid, error});
}

void ElasticMembers::lost(const life::LostRank& lost) {
  const membership::MemberLost event{lost.member, lost.cause.str(), lost.cause_is_final != 0};
  if (over_) return know_more(event);
  const auto known = members_.find(lost.member);
  if (known == members_.end()) return;
  std::optional<life::LostRank>& loss = known->second.loss;
  if (loss && (loss->cause_is_final != 0 || lost.cause_is_final == 0)) return;
  loss = lost;
  // The survivors may have heard of it without its cause.
  if (told_ && told_->member == lost.member && told_->cause_is_final == 0) {
    life::LostRank more = lost;
    more.epoch = told_->epoch;
    more.rank = told_->rank;
    tell_loss(std::move(more));
  }
  events_.push_back(event);
}

void ElasticMembers::know_more(const membership::MemberLost& loss) {
  for (membership::LossLine& line : over_->unsaid)
    line.know_more(loss.member, loss.how, loss.is_final);
}

void ElasticMembers::fenced(MemberId member) {
  events_.push_back(membership::MemberFenced{member});
}

void ElasticMembers::ended(const RankEnd& end) {
  const bool failed = end.wait_status != 0 && !end.removed;
  std::string how = end.lost.empty() ? describe_wait_status(end.wait_status) + end.hint : end.lost;
  members_[end.member].how = how;
  if (slow_ranks_) slow_ranks_->forget(end.member);
  events_.push_back(membership::MemberEnded{end.member, exit_code_of(end.wait_status), failed,
                                            std::move(how), end.removed});
}

void ElasticMembers::host_lost(const std::string& host, const std::string& how,
                               const std::vector<life::LostRank>& losses, bool was_silent) {
  for (const life::LostRank& lost : losses) {
    const auto known = members_.find(lost.member);
    if (known != members_.end() && !known->second.loss) known->second.loss = lost;
  }
  events_.push_back(membership::HostLost{host, how, was_silent});
  hosts_changed();
}

// What has happened comes first: of two hosts that are drained together one may be the last.
Result<std::string> ElasticMembers::drain(const std::string& host, bool as_last) {
  settle(std::chrono::steady_clock::now());
  if (over_) return failed_precondition("the job is about to end");
  if (takes_over_) return failed_precondition("another controller is taking over; ask again");
  Result<std::string> outlook = drain_outlook(host);
  const bool is_last = outlook.status().code() == Code::kFailedPrecondition;
  if (outlook.ok() || (is_last && as_last)) events_.push_back(membership::HostDrained{host});
  settle(std::chrono::steady_clock::now());
  return outlook;
}

void ElasticMembers::awaited_is_drained(const std::string& host) {
  events_.push_back(membership::HostDrained{host});
  settle(std::chrono::steady_clock::now());
}

bool ElasticMembers::drains_are_kept() const {
  const auto is_drain = [](const membership::Event& event) {
    return std::holds_alternative<membership::HostDrained>(event);
  };
  return over_ || (!withheld_ && std::ranges::none_of(events_, is_drain));
}

// Of the job as it will be when all that waits for a decision to be kept is decided.
Result<std::string> ElasticMembers::drain_outlook(const std::string& host) const {
  if (events_.empty()) return decider_.drain_outlook(host);
  membership::MembershipDecider later = decider_.copy();
  for (const membership::Event& event : events_)
    (void)later.on(event, std::chrono::steady_clock::now());
  return later.drain_outlook(host);
}

void ElasticMembers::counted(const RankCounters& counters) {
  if (slow_ranks_)
    slow_ranks_->take(counters.member, std::chrono::steady_clock::now(), counters.at_ns,
                      counters.waited_ns);
}

// Nothing is decided, and no timeout begins, while the first hosts are made ready.
void ElasticMembers::hosts_changed() {
  ReadyHosts ready = doors_.ready_hosts(found_);
  any_ready_ = any_ready_ || !ready.hosts.empty() || !ready.more_come;
  if (!any_ready_) return;
  membership::HostsFound event{std::move(ready.hosts)};
  event.begin_short = ready.begin_short;
  for (const HostSlots& host : found_) event.named.insert(host.host);
  events_.push_back(std::move(event));
}

bool ElasticMembers::child_ended(pid_t pid, int wait_status) {
  return discovery_ && discovery_->ended(pid, wait_status);
}

// ---- the loop -----------------------------------------------------------------------------------

void ElasticMembers::add_to_poll(std::vector<pollfd>* fds) const {
  if (!takes_over_ && !withheld_) fds->push_back({store_->entries_fd(), POLLIN, 0});
  if (discovery_) discovery_->add_to_poll(fds);
}

std::optional<ElasticMembers::TimePoint> ElasticMembers::next_deadline() const {
  if (over_) return std::nullopt;
  std::optional<TimePoint> next = decider_.next_deadline();
  if (takes_over_ || withheld_) return std::nullopt;
  if (!events_.empty()) next = TimePoint{};
  if (discovery_ && discovery_->failed().ok()) {
    const TimePoint look = discovery_->next_deadline();
    if (!next || look < *next) next = look;
  }
  if (slow_ranks_ && (!next || next_slow_look_ < *next)) next = next_slow_look_;
  return next;
}

void ElasticMembers::work(TimePoint now) {
  if (takes_over_ || withheld_) return;
  const auto entries = store_->take_entries();
  if (over_) return;
  if (std::exchange(begins_, false) && !discovery_) hosts_found(plan_.hosts);
  look_for_hosts(now);
  look_for_slow(now);
  for (const rendezvous::Entry& entry : entries)
    events_.push_back(membership::MemberEnters{entry.member, entry.standing});
  const auto deadline = decider_.next_deadline();
  if (deadline && now >= *deadline) events_.push_back(membership::Tick{});
  settle(now);
}

void ElasticMembers::settle(TimePoint now) {
  while (!events_.empty() && !over_ && !withheld_ && !takes_over_) {
    const membership::Event event = std::move(events_.front());
    events_.pop_front();
    decide(event, now);
  }
}

void ElasticMembers::look_for_hosts(TimePoint now) {
  if (!discovery_) return;
  auto hosts = discovery_->work(now);
  for (const std::string& line : discovery_->take_said()) doors_.say(line);
  if (!discovery_->failed().ok())
    return finish({kUsageError, discovery_->failed().message(), {}, {}});
  if (hosts) hosts_found(std::move(*hosts));
}

void ElasticMembers::look_for_slow(TimePoint now) {
  if (!slow_ranks_ || now < next_slow_look_) return;
  next_slow_look_ = now + kSlowLook;
  const auto found = slow_ranks_->look();
  if (slow_ && (!found || found->member != *slow_))
    events_.push_back(membership::MemberSlow{*std::exchange(slow_, std::nullopt), false});
  if (!found || slow_) return;
  slow_ = found->member;
  events_.push_back(membership::MemberSlow{found->member});
  const Known& known = members_[found->member];
  char factor[32];
  std::snprintf(factor, sizeof(factor), "%.1f", found->factor);
  doors_.say("rank " + std::to_string(known.rank) + " on " + known.host + " is " + factor +
             " times slower than the others: when another is ready it takes that place "
             "(--evict-slow)");
}

void ElasticMembers::hosts_found(std::vector<HostSlots> hosts) {
  found_ = std::move(hosts);
  hosts_changed();
}

void ElasticMembers::decide(const membership::Event& event, TimePoint now) {
  std::vector<membership::Action> actions = decider_.on(event, now);
  const bool is_drain = std::holds_alternative<membership::HostDrained>(event);
  const bool lasts = (is_drain && decider_.epoch() != 0) ||  // nobody takes over before that
                     std::ranges::any_of(actions, [&](const auto& one) { return is_lasting(one); });
  if (!doors_.keep || !lasts) return perform_all(actions);
  withheld_ = std::move(actions);
  doors_.keep(decider_.record());
}

// What nobody may decide again who does not know of it.
bool ElasticMembers::is_lasting(const membership::Action& action) const {
  if (const auto* answer = std::get_if<membership::Answer>(&action)) {
    const wire::NewEpoch& common = *answer->common;
    return common.answer == wire::EpochAnswer::kRemoved ||
           (common.answer == wire::EpochAnswer::kEnter && common.epoch > begun_);
  }
  return std::holds_alternative<membership::StartMember>(action) ||
         std::holds_alternative<membership::EndJob>(action);
}

void ElasticMembers::record_is_kept() {
  if (!withheld_) return;
  const std::vector<membership::Action> actions = *std::exchange(withheld_, std::nullopt);
  perform_all(actions);
}

void ElasticMembers::perform_all(const std::vector<membership::Action>& actions) {
  for (const membership::Action& action : actions) {
    if (over_) return;
    std::visit([this](const auto& what) { perform(what); }, action);
  }
}

bool ElasticMembers::take_over(const std::string& record, const std::vector<Living>& living,
                               const std::vector<std::string>& back) {
  auto decider = membership::MembershipDecider::resume(plan_.policy, record);
  if (decider == nullptr) return false;
  decider_ = std::move(*decider);
  takes_over_ = false;
  begins_ = false;
  any_ready_ = true;
  found_ = discovery_ ? decider_.found_hosts() : plan_.hosts;
  // Until the script says how many slots they have.
  for (const std::string& name : back) {
    const auto is_it = [&](const HostSlots& host) { return host.host == name; };
    if (discovery_ && std::ranges::none_of(found_, is_it)) found_.push_back({name, 0, "", 0});
  }
  if (discovery_) discovery_->go_on_from(found_);
  for (const Living& one : living) members_[one.member] = {one.host, one.rank, one.pid};
  std::vector<uint64_t> by_rank;
  for (const auto& seat : decider_.seats()) {
    Known& known = members_[seat.member];
    known.host = seat.host;
    known.rank = seat.rank;
    by_rank.push_back(seat.member);
  }
  if (decider_.epoch() != 0) ranks_are(decider_.epoch(), std::move(by_rank));
  events_.push_front(membership::Tick{});  // it repeats its orders
  return true;
}

// ---- what is done -------------------------------------------------------------------------------

void ElasticMembers::perform(const membership::StartMember& action) {
  members_[action.member] = {action.host, action.place.rank};
  Order order = order_of(Order::Kind::kStartMember);
  order.start = {action.member, action.place, action.host, action.slot};
  doors_.tell(action.host, order);
}

void ElasticMembers::perform(const membership::StopMember& action) {
  Known& known = members_[action.member];
  known.stopped = action.why;
  Order order = order_of(Order::Kind::kStopMember);
  order.member = action.member;
  order.text = action.why;
  doors_.tell(known.host, order);
}

void ElasticMembers::perform(const membership::EndEpoch& action) {
  const Known& known = members_[action.lost];
  life::LostRank lost;
  if (known.loss) lost = *known.loss;
  lost.epoch = action.epoch;
  lost.member = action.lost;
  lost.rank = known.rank;
  if (action.has_left) {
    lost = {};
    lost.epoch = action.epoch;
    lost.cause.set("rank " + std::to_string(known.rank) + " on " + known.host +
                   " has given it up, and no rank is known to be lost");
    lost.cause_is_final = 1;
  } else if (!known.loss) {
    lost.pid = known.pid;
    lost.host.set(known.host);
    lost.cause_is_final = known.stopped.empty() && known.how.empty() ? 0 : 1;
    if (!known.stopped.empty())
      lost.cause.set("ruedarun stops it: " + known.stopped);
    else  // it had left in order before it failed
      lost.cause.set(known.how.empty() ? "it ended without leaving the job" : known.how);
  }
  const std::string text = lost.describe();
  tell_loss(std::move(lost));
  if (!action.has_left) store_->mark_dead(action.lost, text);
}

void ElasticMembers::tell_loss(life::LostRank lost) {
  Order order = order_of(Order::Kind::kRankLost);
  order.lost = lost;
  told_ = std::move(lost);
  doors_.tell("", order);
}

void ElasticMembers::perform(const membership::Answer& action) {
  const wire::NewEpoch& common = *action.common;
  if (common.answer == wire::EpochAnswer::kEnter && common.epoch > begun_) begin_epoch(common);
  const auto known = members_.find(action.member);
  wire::NewEpoch epoch = action.epoch();
  if (known != members_.end()) epoch.tcp_address = doors_.address_of(known->second.host);
  store_->answer(action.member, epoch);
  const bool is_out =
      common.answer == wire::EpochAnswer::kRemoved || common.answer == wire::EpochAnswer::kRefused;
  if (!is_out || known == members_.end()) return;
  Order order = order_of(Order::Kind::kStopMember);
  order.member = action.member;
  order.text = common.text;
  order.knows = true;
  doors_.tell(known->second.host, order);
}

void ElasticMembers::begin_epoch(const wire::NewEpoch& epoch) {
  std::vector<uint64_t> by_rank;
  for (const wire::EpochMember& one : epoch.members) by_rank.push_back(one.member);
  ranks_are(epoch.epoch, std::move(by_rank));
}

// All that goes by ranks hears of the new ones before any member does.
void ElasticMembers::ranks_are(uint64_t epoch, std::vector<uint64_t> by_rank) {
  begun_ = epoch;
  Order order = order_of(Order::Kind::kBeginEpoch);
  for (const uint64_t member : by_rank) {
    const auto rank = static_cast<Rank>(order.ranks.size());
    order.ranks[member] = rank;
    members_[member].rank = rank;
  }
  // Whoever has ended has no more to be said of.
  std::erase_if(members_, [&](const auto& known) {
    return !known.second.how.empty() && !order.ranks.contains(known.first);
  });
  if (slow_ranks_) slow_ranks_->begin_epoch(by_rank);
  slow_.reset();
  if (store_->epoch() != epoch) store_->begin_epoch(epoch, std::move(by_rank));
  doors_.tell("", order);
  doors_.begin_epoch(order.ranks);
}

void ElasticMembers::perform(const membership::Announce& action) {
  Order order = order_of(Order::Kind::kAnnounce);
  order.word = action.serial << 8 | static_cast<uint64_t>(action.changes);
  doors_.tell("", order);
}

void ElasticMembers::perform(const membership::EndJob& action) {
  finish({action.exit_code, action.text, action.failed, action.unsaid});
}

void ElasticMembers::finish(Over over) {
  over_ = std::move(over);
  for (const membership::Event& event : events_) {  // nothing is decided of them any more
    if (const auto* loss = std::get_if<membership::MemberLost>(&event)) know_more(*loss);
  }
  discovery_.reset();
  Order order = order_of(Order::Kind::kJobOver);
  order.exit_code = over_->exit_code;
  doors_.tell("", order);
}

void ElasticMembers::stop() {
  if (!over_) over_ = Over{};
  takes_over_ = false;
  withheld_.reset();
  discovery_.reset();
}

}  // namespace rueda::launcher
