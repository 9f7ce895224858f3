#include <algorithm>
#include <climits>

#include "launcher/membership/state.h"

namespace rueda::launcher::membership {

using Decider = MembershipDecider;

Candidate Decider::State::candidate(const Member& member) const {
  return {member.id, hosts.position(member.host), member.slot, member.rank, false};
}

// Slots for spares are set aside, as long as the ranks to start with find room.
int Decider::State::seat_cap() const {
  if (!policy.elastic) return policy.start_np;
  const int room = std::max(policy.start_np, hosts.usable_slots() - policy.spares);
  return std::min(room, policy.max_np > 0 ? policy.max_np : INT_MAX);
}

int Decider::State::seats_taken() const {
  int taken = alive - static_cast<int>(leaving.size());
  for (const MemberId id : newcomers) taken += members.at(id).spare ? 0 : 1;
  return taken;
}

Member& Decider::State::add_member(const std::string& host, int slot, bool spare) {
  Member member;
  member.id = next_member++;
  member.host = host;
  member.slot = slot;
  member.spare = spare;
  return members.emplace(member.id, std::move(member)).first->second;
}

void Decider::State::try_start() {
  const int needed = begins_short ? std::max(policy.min_np, 1) : policy.start_np;
  if (hosts.usable_slots() < needed) {
    if (passed(*since, policy.elastic_timeout)) {
      end_job(kTooFew, std::to_string(needed) + " ranks need " + std::to_string(needed) +
                           " slots, and there were " + std::to_string(hosts.usable_slots()) +
                           " until the timeout");
    }
    return;
  }
  auto first = std::make_shared<wire::NewEpoch>();
  const int size = std::min(seat_cap(), hosts.usable_slots());
  for (const HostTable::Host& host : hosts.hosts()) {
    for (int slot = 0; host.usable() && slot < host.slots && std::ssize(ranks) < size; ++slot) {
      Member& member = add_member(host.name, slot, false);
      member.stage = Stage::kInEpoch;
      member.rank = static_cast<Rank>(ranks.size());
      ranks.push_back(member.id);
      first->members.push_back({member.id, member.host, -1, false});
    }
  }
  epoch = 1;
  first->epoch = epoch;
  first->size = size;
  current = std::move(first);
  alive = unanswered = size;
  phase = Phase::kRunning;
  seats_dirty = true;
  start_first();
  if (policy.elastic) fill_seats();
}

void Decider::State::start_first() {
  std::vector<Candidate> all;
  for (const MemberId id : ranks) all.push_back(candidate(members.at(id)));
  const std::vector<RankPlace> places = places_of(all);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Member& member = members.at(ranks[rank]);
    if (member.answered || !member.lives()) continue;
    do_(StartMember{member.id, member.host, member.slot, places[rank], false});
  }
}

// Somebody is lost whose slot will be free soon.
bool Decider::State::slot_comes_free() const {
  return std::any_of(members.begin(), members.end(), [&](const auto& it) {
    const Member& member = it.second;
    return !member.lives() && !member.fenced && hosts.usable(member.host, member.slot) &&
           !slots.barred(member.host, member.slot);
  });
}

// Whoever is missing is started: first spares take seats, then free slots get new ranks, then the
// spares are made up for. A slot is free when no thread of who sat there is left.
void Decider::State::fill_seats() {
  std::set<std::pair<std::string, int>> occupied;
  std::map<std::string, int> load;  // ranks of a host, spares not counted
  int spares = 0;
  for (const auto& [id, member] : members) {
    if (member.lives() || !member.fenced) occupied.insert({member.host, member.slot});
    if (!member.lives()) continue;
    if (member.spare)
      ++spares;
    else
      ++load[member.host];
  }
  std::vector<MemberId> started;
  int taken = seats_taken();
  const int cap = seat_cap();
  for (const Stage stage : {Stage::kReady, Stage::kBuilding, Stage::kStarting}) {
    for (const MemberId id : newcomers) {
      Member& member = members.at(id);
      const HostTable::Host* host = hosts.find(member.host);
      if (taken >= cap || !member.spare || member.stage != stage || !host->usable()) continue;
      if (load[member.host] >= host->slots) continue;
      member.spare = false;
      ++load[member.host];
      ++taken;
      --spares;
    }
  }
  const auto start = [&](const std::string& host, int slot, bool spare) {
    Member& member = add_member(host, slot, spare);
    occupied.insert({host, slot});
    newcomers.insert(member.id);
    started.push_back(member.id);
  };
  const auto is_free = [&](const HostTable::Host& host, int slot) {
    return occupied.count({host.name, slot}) == 0 && !slots.barred(host.name, slot);
  };
  const int wanted = policy.spares + (may_exchange() ? static_cast<int>(slow.size())
                                                     : 0);  // these only where there is room
  for (const bool spare : {false, true}) {
    for (const HostTable::Host& host : hosts.hosts()) {
      for (int slot = 0; host.usable() && slot < host.slots; ++slot) {
        if (spare ? spares >= wanted : taken >= cap) break;
        if (!is_free(host, slot) || (!spare && load[host.name] >= host.slots)) continue;
        start(host.name, slot, spare);
        ++(spare ? spares : taken);
        if (!spare) ++load[host.name];
      }
    }
  }
  // A spare that finds no slot of its own sits beside the ranks, where they are fewest.
  while (spares < policy.spares && alive > 0 && !slot_comes_free()) {
    const HostTable::Host* best = nullptr;
    int best_slot = 0;
    for (const HostTable::Host& host : hosts.hosts()) {
      if (!host.usable()) continue;
      int slot = host.slots;
      while (occupied.count({host.name, slot}) != 0) ++slot;
      if (slots.barred(host.name, slot)) continue;
      if (best == nullptr || slot - host.slots < best_slot - best->slots)
        best = &host, best_slot = slot;
    }
    if (best == nullptr) break;
    start(best->name, best_slot, true);
    ++spares;
  }
  if (!started.empty()) expect_places(started);
}

// The place that each can expect in the epoch in which it is let in, and the order to start it.
void Decider::State::expect_places(const std::vector<MemberId>& started) {
  std::vector<Candidate> all;
  for (const MemberId id : ranks) {
    const Member& member = members.at(id);
    if (member.lives() && !member.leaving) all.push_back(candidate(member));
  }
  for (const MemberId id : newcomers) {
    if (!members.at(id).spare) all.push_back(candidate(members.at(id)));
  }
  all = in_order(std::move(all));
  const std::vector<RankPlace> places = places_of(all);
  for (size_t rank = 0; rank < all.size(); ++rank)
    members.at(all[rank].member).expected = places[rank];
  for (const MemberId id : started) {
    Member& member = members.at(id);
    if (member.spare) {  // as one rank more, behind all
      const auto size = static_cast<Rank>(all.size());
      member.expected = {size, size + 1, 0, 1, 0, 1};
    }
    do_(StartMember{id, member.host, member.slot, member.expected, member.spare});
  }
}

// It is removed at the next boundary; at once if it is in no epoch.
void Decider::State::leave(Member& member) {
  if (member.leaving) return;
  if (member.is_newcomer()) return stop(member, "its host is not used any more");
  member.leaving = true;
  leaving.insert(member.id);
  slow.erase(member.id);
}

// This one is lost before it was in: whose place it was to take stays, where it may.
void Decider::State::keep_slow(const Member& newcomer) {
  Member* const member = newcomer.instead_of ? find(*newcomer.instead_of) : nullptr;
  if (member == nullptr || !member->lives() || !hosts.usable(member->host, member->slot)) return;
  member->leaving = false;
  leaving.erase(member->id);
  slow.insert(member->id);
}

// Members whose host is no longer found, or has fewer slots than ranks.
void Decider::State::leave_what_is_gone() {
  std::map<std::string, std::vector<MemberId>> by_host;
  for (const auto& [id, member] : members) {
    if (member.lives() && !member.leaving) by_host[member.host].push_back(id);
  }
  for (auto& [name, there] : by_host) {
    const HostTable::Host* host = hosts.find(name);
    const bool listed = host != nullptr && host->listed;
    std::sort(there.begin(), there.end(),
              [&](MemberId a, MemberId b) { return members.at(a).slot < members.at(b).slot; });
    int room = listed ? host->slots : 0;
    for (const MemberId id : there) {
      Member& member = members.at(id);
      if (listed && member.spare) continue;
      if (room-- <= 0) leave(member);
    }
  }
}

// Work that is dealt out unevenly makes each in turn slow: no more than as many times as a slot is
// filled again.
bool Decider::State::may_exchange() const {
  return std::count_if(exchanges.begin(), exchanges.end(), [&](Time at) {
           return !passed(at, policy.replacement_span);
         }) < policy.most_replacements;
}

// A slow member leaves when a spare, or a rank started for that in a free slot, is ready; better on
// another host, which may be what is slow.
void Decider::State::exchange_slow() {
  for (const MemberId id : std::set<MemberId>(slow)) {
    Member* best = nullptr;
    for (const MemberId other : newcomers) {
      Member& spare = members.at(other);
      if (!spare.spare || spare.stage != Stage::kReady) continue;
      const bool elsewhere = spare.host != members.at(id).host;
      if (best == nullptr || (elsewhere && best->host == members.at(id).host)) best = &spare;
    }
    if (best == nullptr || !may_exchange()) return;
    do_(Say{name_of(members.at(id)) + " is too slow: a spare on " + best->host +
            " takes its place"});
    best->spare = false;
    best->instead_of = id;
    std::erase_if(exchanges, [&](Time at) { return passed(at, policy.replacement_span); });
    exchanges.push_back(now);
    leave(members.at(id));
  }
}

}  // namespace rueda::launcher::membership
