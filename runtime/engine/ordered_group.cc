#include "runtime/engine/ordered_group.h"

#include <algorithm>
#include <utility>

#include "collectives/desc/tags.h"
#include "proto/negotiation_codec.h"
#include "runtime/engine/ordered_call.h"
#include "runtime/membership/native_group.h"

namespace rueda::engine {
namespace {

using wire::GroupWord;

constexpr size_t kReadyCalls = 4;  // for which a group has room from the first on

// Of the key and the ranks; no process set has such an id.
uint32_t flight_set_of(const ProcessSet& set) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const char c : set.key) add(static_cast<unsigned char>(c));
  for (const Rank rank : set.ranks) add(static_cast<uint64_t>(rank) + 256);
  return static_cast<uint32_t>(hash >> 32) | flight::kGroupBit;
}

}  // namespace

OrderedGroup::OrderedGroup(const Shared& shared, ProcessSetPtr set, int64_t channels)
    : shared_(shared),
      set_(std::move(set)),
      channels_(channels),
      flight_set_(flight_set_of(*set_)),
      late_(shared.late, set_->ranks, *set_->place),
      buffers_(reserves_late(*shared.memory, set_->ranks) ? Buffers::kUnasked : Buffers::kReserved),
      protocols_(shared.config->shm_protocol),
      devices_(shared.fabric->transport.get(), shared.membership, shared.machine),
      cache_(set_.get(),
             [flight = shared.flight](uint32_t site) { return flight->site_text(site); }),
      messages_(shared.fabric->transport.get(), shared.finisher, &devices_, shared.membership->rank,
                set_->serial,
                [this](Rank to, GroupWord word) { tell_of_messages(to, std::move(word)); }) {
  for (const Rank rank : set_->ranks) members_.emplace_back().rank = rank;
  Member& me = members_[static_cast<size_t>(*set_->place)];
  me.number = set_->serial;
  me.channels = channels_;
  me.gone = true;  // nobody waits for its own words
  shared_.flight->members(flight_set_, set_->ranks);
  if (members_.size() == 1) connect();
}

OrderedGroup::~OrderedGroup() = default;

// ---- the members ----

void OrderedGroup::tell(const GroupWord& word) {
  const std::string bytes = wire::encode(word);
  for (const Member& member : members_) {
    if (member.rank != shared_.membership->rank)
      shared_.fabric->transport->send_control(member.rank, bytes);
  }
}

void OrderedGroup::tell_of_messages(Rank to, GroupWord word) {
  word.epoch = shared_.membership->epoch;
  word.number = set_->serial;
  if (to == GroupMessages::kAnybody) return tell(word);
  shared_.fabric->transport->send_control(to, wire::encode(word));
}

void OrderedGroup::say_hello() {
  GroupWord word;
  word.epoch = shared_.membership->epoch;
  word.what = GroupWord::What::kHello;
  word.number = set_->serial;
  word.key = set_->key;
  word.ranks.assign(set_->ranks.begin(), set_->ranks.end());
  word.channels = channels_;
  tell(word);
}

OrderedGroup::Member* OrderedGroup::member(Rank rank) {
  const auto place = set_->place_of(rank);
  return place ? &members_[static_cast<size_t>(*place)] : nullptr;
}

bool OrderedGroup::awaits(Rank rank) const {
  const auto place = set_->place_of(rank);
  return place && !members_[static_cast<size_t>(*place)].number &&
         !members_[static_cast<size_t>(*place)].gone;
}

bool OrderedGroup::is_open_as(const std::string& key, const std::vector<int64_t>& ranks) const {
  return set_->key == key &&
         std::equal(ranks.begin(), ranks.end(), set_->ranks.begin(), set_->ranks.end());
}

void OrderedGroup::hear_hello(Rank rank, const GroupWord& word) {
  Member* const from = member(rank);
  from->number = word.number;
  from->channels = word.channels;
  messages_.begin_waiting(rank, word.number);
  const bool all_here =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.number; });
  if (all_here && !connected_ && !failed_) connect();
}

bool OrderedGroup::knows(Rank rank, uint64_t number) const {
  const auto place = set_->place_of(rank);
  return place && members_[static_cast<size_t>(*place)].number == number;
}

void OrderedGroup::hear(Rank rank, const GroupWord& word) {
  if (word.what == GroupWord::What::kAbort) {
    member(rank)->ended = true;
    const Status why(word.code, word.reason);
    return fail(word.ranks.size() == 1 ? why.with_rank(static_cast<Rank>(word.ranks[0])) : why);
  }
  if (word.what == GroupWord::What::kWaits) {
    member(rank)->begun = word.calls;
    return;
  }
  if (word.what >= GroupWord::What::kWants) return messages_.hear(rank, word);
  const Status why = Status(word.code, name(rank) + " " + word.reason).with_rank(rank);
  lose(member(rank), why);
  end_from(word.calls, why);
}

// It sends nothing more.
void OrderedGroup::lose(Member* from, const Status& why) {
  from->gone = true;
  messages_.fail_met(from->rank, why);
  devices_.abandon_pair(from->rank);
  const bool alone =
      std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.gone; });
  if (!alone) return;
  alone_ = why;
  messages_.fail_unmatched(why);
}

void OrderedGroup::on_left(Rank rank) {
  Member* const from = member(rank);
  if (from == nullptr || from->gone) return;
  const Status why = cancelled(name(rank) + " has shut down").with_rank(rank);
  lose(from, why);
  messages_.fail_waiting(rank, why);
  end_from(0, why);
}

// The lowest rank's number of the group, once it is known: it is in tags.
uint32_t OrderedGroup::lowest_number() const {
  const auto lowest =
      std::min_element(members_.begin(), members_.end(),
                       [](const Member& a, const Member& b) { return a.rank < b.rank; });
  return static_cast<uint32_t>(*lowest->number);
}

// The numbers of channels may differ from member to member, the tags may not: the lowest rank's
// number of the group is in them. A group in which one member has no channels left does without.
void OrderedGroup::connect() {
  algorithms::NativeGroup group =
      membership::native_group(*shared_.config, *shared_.memory, *shared_.fabric, set_->ranks);
  const Rank lowest = *std::min_element(set_->ranks.begin(), set_->ranks.end());
  group.tags = tags_ = tags::of_group(lowest, lowest_number());
  const bool lacks_channels = std::any_of(members_.begin(), members_.end(), [](const Member& m) {
    return m.channels == GroupWord::kHasNone;
  });
  if (lacks_channels) {
    group.arenas.clear();
    group.host_of.clear();
  } else {
    const host::Arena* const own = shared_.memory->own();
    const size_t each = own == nullptr ? 0 : own->layout().channels();
    for (const Member& m : members_)
      group.first_channels.push_back(static_cast<size_t>(std::max<int64_t>(m.channels, 0)) * each);
  }
  using algorithms::NativeCommunicator;
  using algorithms::Order;
  entries_ = std::make_unique<NativeCommunicator>(group, Order::kEntries);
  entries_->watch(&late_);
  data_ = std::make_unique<NativeCommunicator>(group, Order::kData);
  measure_protocols();
  connected_ = true;
  failure_ = make_room(kReadyCalls);
  for (CallPtr& call : std::exchange(waiting_, {})) enter(std::move(call));
}

// ---- the end ----

void OrderedGroup::end_from(uint64_t number, const Status& status) {
  if (!limit_ || number < limit_->number) limit_ = Limit{number, status};
  // Some member never gives to its GPU what waits on this one's.
  if (limit_->number < given_) devices_.abandon_all_members();
  for (std::vector<CallPtr>* const calls : {&waiting_, &entering_}) {
    std::vector<CallPtr> ended;
    for (CallPtr& call : *calls) {
      if (call->number >= limit_->number) ended.push_back(std::move(call));
    }
    std::erase(*calls, nullptr);
    for (CallPtr& call : ended) end(std::move(call), limit_->status);
  }
  if (limit_->number > next_) return;
  for (Request* const request : std::exchange(forming_, {}))
    shared_.finisher->finish(request, limit_->status);
}

// Calls that some member has not begun, and never will: once those before have ended, the
// communicator is of no use any more.
void OrderedGroup::drop_running() {
  data_->abandon();
  if (by_messages_) by_messages_->abandon();
  devices_.abandon_all_members();
  abandoned_ = true;
  for (CallPtr& call : std::exchange(running_, {})) {
    call->prepared->steps.clear();
    end(std::move(call), limit_->status);
  }
}

void OrderedGroup::leave(const Status& status) {
  leaving_ = true;
  end_from(agreed_, status);
}

void OrderedGroup::fail_messages(const Status& status) {
  if (!messages_.empty()) devices_.abandon();  // which may be at them
  messages_.fail(status);
}

void OrderedGroup::say_bye() {
  bye_said_ = true;
  GroupWord word;
  word.epoch = shared_.membership->epoch;
  word.what = GroupWord::What::kBye;
  word.number = set_->serial;
  word.calls = agreed_;
  word.code = leaving_ ? Code::kCancelled : Code::kFailedPrecondition;
  word.reason = leaving_ ? "has shut down" : "has closed the group";
  word.reason += " after " + std::to_string(agreed_) + " calls";
  tell(word);
}

bool OrderedGroup::is_over() const {
  return closing_ && bye_said_ &&
         std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.gone; });
}

void OrderedGroup::fail(const Status& status) {
  if (failed_) return;
  failed_ = true;
  devices_.abandon();
  end_from(0, status);
  messages_.fail(status);
  if (connected_) {
    entries_->abandon();
    data_->abandon();
    if (by_messages_) by_messages_->abandon();
  }
  abandoned_ = true;
  if (bye_said_) return;  // the others know that nothing runs here
  GroupWord word;
  word.epoch = shared_.membership->epoch;
  word.what = GroupWord::What::kAbort;
  word.number = set_->serial;
  word.code = status.code();
  word.reason = status.message();
  if (status.facts().rank >= 0) word.ranks.push_back(status.facts().rank);
  tell(word);
}

bool OrderedGroup::nobody_touches_memory() const {
  return channels_ < 0 || std::all_of(members_.begin(), members_.end(), [](const Member& member) {
           return member.ended || member.gone;
         });
}

void OrderedGroup::break_down(const Status& verdict) {
  devices_.abandon();
  end_from(0, verdict);
  messages_.fail(verdict);
  if (connected_) {
    entries_->abandon();
    data_->abandon();
    if (by_messages_) by_messages_->abandon();
  }
  abandoned_ = true;
  for (CallPtr& call : std::exchange(running_, {})) end(std::move(call), verdict);
  stall_check_.reset();
  dropped_.clear();
  free_calls_.clear();
  free_entries_.clear();
  cache_.clear();
}

void OrderedGroup::add_to(counters::Values* totals) const {
  totals->batches += totals_.batches;
  totals->tensors += totals_.tensors;
  totals->fused_tensors += totals_.fused_tensors;
  devices_.add_to(totals);
  if (!connected_) return;
  const shm::Channel::Bytes channels = data_->channel_totals();
  totals->bytes_reduced += static_cast<int64_t>(channels.total);
  totals->bytes_in_place += static_cast<int64_t>(channels.in_place);
  totals->bytes_cma += static_cast<int64_t>(channels.cma);
}

}  // namespace rueda::engine
