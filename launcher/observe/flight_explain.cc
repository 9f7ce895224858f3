#include "launcher/observe/flight_explain.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "collectives/base/utf8.h"
#include "launcher/command/nearest_name.h"
#include "launcher/job/exit_report.h"

namespace rueda::launcher {
namespace {

using flight::Operation;
using flight::State;

constexpr size_t kMostWaits = 8;
constexpr size_t kMostNames = 512;  // looked at for the nearest

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 10 ? "%.1f s" : "%.0f s", std::max(0.0, seconds));
  return text;
}

std::string ago(int64_t then, int64_t now) {
  return seconds_text(static_cast<double>(flight::elapsed_ns(then, now)) * 1e-9) + " ago";
}

bool is_user_operation(const Operation& o) { return o.kind != CollectiveKind::kProcessSet; }

// Of two ranks, not of all in its set.
bool is_message(const Operation& o) { return is_point_to_point(o.kind); }

// "process set 3", "group 'stage 1'", as one of its operations says: allreduce.stage 1#7.
std::string set_of(const Operation& o) {
  if ((o.process_set & flight::kGroupBit) == 0)
    return "process set " + std::to_string(o.process_set);
  const size_t begin = o.name.find('.') + 1;
  return "group '" + o.name.substr(begin, o.name.rfind('#') - begin) + "'";
}

// What a rank has recorded of its process sets. Numbers are used again once a set was removed: what
// stands before the newest note of the members is of another set.
std::map<uint32_t, const Operation*> sets_of(const RankRecord& record) {
  std::map<uint32_t, const Operation*> newest;
  if (!record.flight) return newest;
  for (const Operation& o : record.flight->operations) {
    if (o.process_set != 0 && !is_user_operation(o)) newest[o.process_set] = &o;
  }
  return newest;
}

bool is_of_removed_set(const Operation& o, const std::map<uint32_t, const Operation*>& sets) {
  const auto set = sets.find(o.process_set);
  return set != sets.end() && o.submitted_ns < set->second->submitted_ns;
}

// The ranks in a set's note, "0,2,5"; of many it is shortened, but each member has one.
void add_noted(const std::string& note, const std::vector<RankRecord>& ranks,
               std::set<Rank>* members) {
  if (note.find("...") != std::string::npos) return;
  for (size_t at = 0; at < note.size();) {
    const size_t end = std::min(note.find(',', at), note.size());
    const Rank rank = std::atoi(note.substr(at, end - at).c_str());
    const bool known = std::any_of(ranks.begin(), ranks.end(),
                                   [&](const RankRecord& r) { return r.rank == rank; });
    if (known) members->insert(rank);
    at = end + 1;
  }
}

// Members by process set, as far as anybody recorded them.
std::map<uint32_t, std::set<Rank>> members_of(const std::vector<RankRecord>& ranks) {
  std::map<uint32_t, std::set<Rank>> members;
  std::map<uint32_t, const Operation*> newest;
  for (const RankRecord& record : ranks) {
    members[0].insert(record.rank);
    for (const auto& [set, note] : sets_of(record)) {
      const Operation*& known = newest[set];
      if (known == nullptr || known->submitted_ns < note->submitted_ns) known = note;
    }
  }
  for (const RankRecord& record : ranks) {
    if (!record.flight) continue;
    const auto own = sets_of(record);
    for (const Operation& o : record.flight->operations) {
      if (o.process_set == 0 || is_of_removed_set(o, own)) continue;
      const auto note = own.find(o.process_set);
      const auto known = newest.find(o.process_set);
      const bool older = note != own.end() && note->second->name != known->second->name;
      if (!older) members[o.process_set].insert(record.rank);
    }
  }
  for (const auto& [set, note] : newest) add_noted(note->name, ranks, &members[set]);
  return members;
}

const RankRecord* find(const std::vector<RankRecord>& ranks, Rank rank) {
  const auto it =
      std::find_if(ranks.begin(), ranks.end(), [&](const RankRecord& r) { return r.rank == rank; });
  return it == ranks.end() ? nullptr : &*it;
}

// Other names of this process set that this rank submitted, its nearest to `name`.
std::string nearest_name(const flight::Snapshot& snapshot, const Operation& wanted) {
  std::set<std::string> seen;
  const Operation* best = nullptr;
  size_t least = std::max<size_t>(2, wanted.name.size() / 4) + 1;
  for (auto it = snapshot.operations.rbegin();
       it != snapshot.operations.rend() && seen.size() < kMostNames; ++it) {
    if (it->process_set != wanted.process_set || it->name == wanted.name ||
        !is_user_operation(*it) || !seen.insert(it->name).second) {
      continue;
    }
    const size_t distance = edit_distance(it->name, wanted.name);
    if (distance >= least) continue;
    least = distance;
    best = &*it;
  }
  return best == nullptr ? "" : best->title();
}

std::string with_state(std::string text, const RankRecord& record) {
  if (record.state.empty()) return text;
  text += ": ";
  return text += printable_text(record.state);
}

std::string life_of(const RankRecord& record) {
  switch (record.life) {
    case RankRecord::Life::kDead: return with_state("dead", record);
    case RankRecord::Life::kLeft: return "has left the job (shutdown)";
    case RankRecord::Life::kSilent: return "silent: " + printable_text(record.state);
    case RankRecord::Life::kRunning: break;
  }
  return with_state("does something else", record);
}

void add_lines(const std::string& text, std::vector<std::string>* lines) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines->push_back("      " + printable_text(text.substr(at, end - at)));
    at = end + 1;
  }
}

// The innermost frames of the thread that Python calls current: the one that took the signal.
std::string place_of(const std::string& stacks) {
  constexpr int kFrames = 3;
  size_t at = stacks.find("Current thread");
  std::string text;
  for (int frame = 0; frame < kFrames && at != std::string::npos; ++frame) {
    at = stacks.find('\n', at);
    if (at == std::string::npos || stacks.compare(at + 1, 7, "  File ") != 0) break;
    const size_t end = std::min(stacks.find('\n', ++at), stacks.size());
    text += stacks.substr(at, end - at) + "\n";
  }
  return text;
}

void add_stacks(const RankRecord& record, Stacks how_much, std::vector<std::string>* lines) {
  if (how_much == Stacks::kNone || record.stacks.empty()) return;
  const std::string place = how_much == Stacks::kPlace ? place_of(record.stacks) : record.stacks;
  if (place.empty()) return;
  lines->push_back(how_much == Stacks::kPlace ? "    where it is:" : "    its stacks:");
  add_lines(place, lines);
}

void explain_absentee(const RankRecord& record, const Wait& wait, int64_t now, Stacks how_much,
                      std::vector<std::string>* lines) {
  std::string who = "  not in: rank " + std::to_string(record.rank);
  if (record.flight) who += " (pid " + std::to_string(record.flight->pid) + ")";
  lines->push_back(who + " " + life_of(record));
  if (!record.flight) {
    lines->push_back("    it has not initialised rueda");
  } else {
    const flight::Snapshot& s = *record.flight;
    const Operation* last = nullptr;
    const Operation* same = nullptr;
    std::vector<const Operation*> pending;
    for (const Operation& o : s.operations) {
      if (!is_user_operation(o)) continue;
      last = &o;
      if (o.process_set == wait.operation.process_set && o.name == wait.operation.name) same = &o;
      if (!o.ended()) pending.push_back(&o);
    }
    if (last == nullptr) {
      lines->push_back("    it has submitted nothing");
    } else {
      lines->push_back(
          "    its last operation: " + describe(*last) + ", submitted " +
          ago(last->submitted_ns, now) +
          (last->ended() ? last->state == State::kFailed ? ", failed" : ", ended" : ", not ended"));
    }
    if (!pending.empty() && pending.front() != last)
      lines->push_back("    it waits itself for " + describe(*pending.front()));
    if (is_message(wait.operation)) return add_stacks(record, how_much, lines);
    if (same != nullptr) {
      lines->push_back("    it submitted this name before, " + ago(same->submitted_ns, now));
    } else if (const std::string near = nearest_name(s, wait.operation); !near.empty()) {
      lines->push_back("    the nearest name that it did submit: " + near);
    }
  }
  add_stacks(record, how_much, lines);
}

}  // namespace

std::string describe(const Operation& o) {
  std::string text = o.title();
  if (has_tensor(o.kind)) text += " " + rueda::describe(o.dtype, o.shape);
  // An ordered group is in the name.
  if (o.process_set != 0 && (o.process_set & flight::kGroupBit) == 0) text += " of " + set_of(o);
  if (o.peer >= 0) {
    text += o.kind == CollectiveKind::kSend ? " to rank " : " from rank ";
    text += std::to_string(o.peer);
  }
  if (!o.site.empty()) text += " at " + o.site;
  return text;
}

std::vector<Wait> find_waits(const std::vector<RankRecord>& ranks) {
  const auto members = members_of(ranks);
  std::map<std::pair<uint32_t, std::string>, Wait> waits;
  std::map<std::pair<Rank, Rank>, Wait> messages;  // the oldest from one to the other
  for (const RankRecord& record : ranks) {
    if (!record.flight || record.flight->left) continue;
    for (const Operation& o : record.flight->operations) {
      if (o.ended()) continue;
      if (is_message(o)) {
        if (o.peer < 0 || find(ranks, o.peer) == nullptr) continue;
        Wait& wait = messages[{record.rank, o.peer}];
        const bool is_older = wait.in.empty() || o.submitted_ns < wait.since_ns;
        if (is_older) wait = {o, {record.rank}, {o.peer}, o.submitted_ns};
        continue;
      }
      auto [it, is_new] = waits.try_emplace({o.process_set, o.name});
      Wait& wait = it->second;
      if (is_new || o.submitted_ns < wait.since_ns) {
        wait.operation = o;
        wait.since_ns = o.submitted_ns;
      }
      if (wait.in.empty() || wait.in.back() != record.rank) wait.in.push_back(record.rank);
    }
  }
  std::vector<Wait> result;
  for (auto& [key, wait] : waits) {
    for (const Rank rank : members.at(key.first)) {
      if (std::find(wait.in.begin(), wait.in.end(), rank) == wait.in.end())
        wait.out.push_back(rank);
    }
    result.push_back(std::move(wait));
  }
  for (auto& [ranks_of, wait] : messages) result.push_back(std::move(wait));
  std::stable_sort(result.begin(), result.end(),
                   [](const Wait& a, const Wait& b) { return a.since_ns < b.since_ns; });
  return result;
}

std::vector<std::string> explain_waits(const std::vector<RankRecord>& ranks, int64_t now_ns,
                                       double at_least_seconds, Stacks stacks,
                                       std::optional<Rank> only) {
  std::vector<std::string> lines;
  std::set<Rank> told;
  size_t shown = 0, more = 0;
  for (const Wait& wait : find_waits(ranks)) {
    const double age = wait.seconds(now_ns);
    if (age < at_least_seconds) continue;
    if (only && std::find(wait.in.begin(), wait.in.end(), *only) == wait.in.end()) continue;
    if (shown == kMostWaits) {
      ++more;
      continue;
    }
    ++shown;
    lines.push_back("stalled for " + seconds_text(age) + ": " + describe(wait.operation));
    lines.push_back("  in: " + name_ranks(wait.in));
    if (wait.out.empty()) {
      lines.push_back(wait.operation.state == State::kStarted
                          ? "  all ranks have submitted it and it has begun"
                          : "  all ranks have submitted it");
      for (const RankRecord& record : ranks) {
        if (record.life == RankRecord::Life::kRunning) continue;
        lines.push_back("  rank " + std::to_string(record.rank) + " is " + life_of(record));
      }
    }
    for (const Rank rank : wait.out) {
      const RankRecord* const record = find(ranks, rank);
      if (record == nullptr) continue;
      if (!told.insert(rank).second) {
        lines.push_back("  not in: rank " + std::to_string(rank) + " (see above)");
        continue;
      }
      explain_absentee(*record, wait, now_ns, stacks, &lines);
    }
  }
  if (more > 0) lines.push_back("and " + std::to_string(more) + " more operations wait");
  return lines;
}

// The last operation that ended on all members is where all were together; from there on the orders
// of submission are compared. Orders may differ without harm; who hangs is where they do.
std::vector<std::string> find_divergence(const std::vector<RankRecord>& ranks) {
  std::vector<std::string> lines;
  for (const auto& [set, members] : members_of(ranks)) {
    using Key = std::pair<std::pair<uint32_t, uint64_t>, std::string>;  // plan, batch, name
    const auto key_of = [](const Operation& o) { return Key{{o.generation, o.batch}, o.name}; };
    std::map<Rank, std::vector<const Operation*>> ways;
    std::map<Key, size_t> common;
    for (const Rank rank : members) {
      const RankRecord* const record = find(ranks, rank);
      std::vector<const Operation*>& way = ways[rank];
      if (record == nullptr || !record->flight) continue;
      const auto sets = sets_of(*record);
      for (const Operation& o : record->flight->operations) {
        if (o.process_set != set || !is_user_operation(o) || is_message(o)) continue;
        if (is_of_removed_set(o, sets)) continue;
        way.push_back(&o);
        if (o.state == State::kDone && o.batch != 0) ++common[key_of(o)];
      }
    }
    const auto any =
        std::find_if(ways.begin(), ways.end(), [](const auto& way) { return !way.second.empty(); });
    if (any == ways.end()) continue;
    // Behind the last one that all have ended, on each rank.
    std::map<Rank, size_t> at;
    std::string anchor;
    for (const auto& [rank, way] : ways) {
      for (size_t i = 0; i < way.size(); ++i) {
        const auto known = common.find(key_of(*way[i]));
        if (known != common.end() && known->second >= members.size()) {
          at[rank] = i + 1;
          anchor = way[i]->title();
        }
      }
    }
    const auto name_at = [&](Rank rank, size_t i) -> std::string {
      const auto& way = ways.at(rank);
      return at[rank] + i < way.size() ? describe(*way[at[rank] + i]) : "nothing more";
    };
    const auto plain_at = [&](Rank rank, size_t i) -> std::string {
      const auto& way = ways.at(rank);
      return at[rank] + i < way.size() ? way[at[rank] + i]->name : "";
    };
    for (size_t i = 0; i < flight::kRecords; ++i) {
      std::map<std::string, std::vector<Rank>> groups;
      for (const Rank rank : members) groups[plain_at(rank, i)].push_back(rank);
      if (groups.size() == 1 && groups.begin()->first.empty()) break;
      if (groups.size() == 1) continue;
      std::string line = "first divergence";
      if (set != 0) line += " in " + set_of(*any->second.front());
      if (i > 0) {
        line += " after " + ways.at(*members.begin())[at[*members.begin()] + i - 1]->title();
      } else if (!anchor.empty()) {
        line += " after " + anchor;
      }
      line += ":";
      lines.push_back(line);
      for (const auto& [name, group] : groups)
        lines.push_back("  " + name_ranks(group) + " submitted " + name_at(group.front(), i));
      break;
    }
  }
  return lines;
}

std::vector<std::string> explain(const std::vector<RankRecord>& ranks, int64_t now_ns) {
  std::vector<std::string> lines;
  for (const RankRecord& record : ranks) {
    std::string line = "rank " + std::to_string(record.rank);
    if (!record.flight) {
      lines.push_back(line + ": nothing recorded (it has not initialised rueda)");
      continue;
    }
    const flight::Snapshot& s = *record.flight;
    line += " (pid " + std::to_string(s.pid) + " on " + s.host +
            "): " + std::to_string(s.submitted + s.planned_tensors) + " operations";
    const uint64_t open = s.submitted - std::min(s.submitted, s.ended);
    if (open > 0) line += ", " + std::to_string(open) + " not ended";
    if (record.life != RankRecord::Life::kRunning) {
      line += "; " + life_of(record);
    } else if (!record.state.empty()) {
      line += "; " + printable_text(record.state);
    }
    lines.push_back(line);
    const auto last = std::find_if(s.operations.rbegin(), s.operations.rend(), is_user_operation);
    if (last != s.operations.rend()) {
      lines.push_back("  last: " + describe(*last) + ", submitted " +
                      ago(last->submitted_ns, now_ns) + (last->ended() ? "" : ", not ended"));
    }
  }
  for (std::string& line : find_divergence(ranks)) lines.push_back(std::move(line));
  for (std::string& line : explain_waits(ranks, now_ns, 0, Stacks::kNone))
    lines.push_back(std::move(line));
  for (const RankRecord& record : ranks) {
    if (record.stacks.empty()) continue;
    lines.push_back("stacks of rank " + std::to_string(record.rank) +
                    ", when they were last asked for:");
    add_lines(record.stacks, &lines);
  }
  return lines;
}

}  // namespace rueda::launcher
