// A job for tests of the decider: a clock that the test drives, members that do what is asked.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "launcher/membership/membership.h"

namespace rueda::launcher::membership {

class Job {
 public:
  Job(Policy policy, std::vector<std::pair<std::string, int>> hosts) : decider(policy) {
    discover(std::move(hosts));
  }

  void discover(std::vector<std::pair<std::string, int>> hosts) {
    HostsFound found;
    for (auto& [name, slots] : hosts) found.hosts.push_back({name, slots, "", 0});
    on(found);
  }
  // What the event led to is in `last`, and all of it in `all`.
  void on(const Event& event) {
    last = decider.on(event, now);
    all.insert(all.end(), last.begin(), last.end());
  }
  void pass(double seconds) {
    now += std::chrono::duration_cast<Time::duration>(Seconds(seconds));
    on(Tick{});
  }
  // From deadline to deadline, for so long.
  void idle(double seconds) {
    const Time end = now + std::chrono::duration_cast<Time::duration>(Seconds(seconds));
    std::vector<Action> seen;
    for (auto due = decider.next_deadline(); due && *due <= end; due = decider.next_deadline()) {
      now = std::max(now, *due);
      on(Tick{});
      seen.insert(seen.end(), last.begin(), last.end());
    }
    now = end;
    last = seen;
  }

  void enter(MemberId member, wire::EnterCause cause, int64_t commits = -1, uint64_t epoch = ~0U,
             std::string layout = "") {
    wire::Standing s;
    s.member = member;
    s.cause = cause;
    s.epoch = cause == wire::EnterCause::kFirst || cause == wire::EnterCause::kReady ? 0
              : epoch == ~0U ? decider.epoch()
                             : epoch;
    s.has_state = commits >= 0;
    s.commits = static_cast<uint64_t>(std::max<int64_t>(commits, 0));
    s.layout = std::move(layout);
    s.version = version;
    s.settings = settings;
    s.process_sets = sets;
    if (const auto copies = mirrors.find(member); copies != mirrors.end())
      s.mirrors = copies->second;
    on(MemberEnters{member, s});
  }
  void first(MemberId member) { enter(member, wire::EnterCause::kFirst); }
  void all_first() {
    for (const auto& seat : decider.seats()) first(seat.member);
  }
  void ready(MemberId member, int64_t commits = -1) {
    first(member);
    enter(member, wire::EnterCause::kReady, commits);
  }
  void back(MemberId member, int64_t commits) {
    enter(member, wire::EnterCause::kEpochEnded, commits);
  }
  void at_commit(MemberId member, int64_t commits) {
    enter(member, wire::EnterCause::kInterrupted, commits);
  }
  // It dies: lost, then reaped.
  void die(MemberId member, int code = 1) {
    on(MemberLost{member, "killed by signal 9"});
    std::vector<Action> both = last;
    on(MemberEnded{member, code, true, "it ended with code " + std::to_string(code)});
    last.insert(last.begin(), both.begin(), both.end());
  }
  void exit(MemberId member) { on(MemberEnded{member, 0, false, "it ended"}); }

  template <typename A>
  std::vector<A> got() const {
    return of<A>(last);
  }
  template <typename A>
  static std::vector<A> of(const std::vector<Action>& actions) {
    std::vector<A> found;
    for (const Action& action : actions) {
      if (const A* a = std::get_if<A>(&action)) found.push_back(*a);
    }
    return found;
  }
  // Answers to members, in order of members by rank: "3:enter"...
  std::vector<MemberId> entered() const {
    std::vector<MemberId> members;
    for (const Answer& answer : got<Answer>()) {
      if (answer.common->answer == wire::EpochAnswer::kEnter) members.push_back(answer.member);
    }
    return members;
  }
  wire::NewEpoch epoch_of(MemberId member) const {
    for (const Answer& answer : got<Answer>()) {
      if (answer.member == member) return answer.epoch();
    }
    return {.epoch = 0, .rank = -1};
  }
  std::vector<MemberId> started() const {
    std::vector<MemberId> members;
    for (const StartMember& start : got<StartMember>()) members.push_back(start.member);
    return members;
  }
  std::vector<MemberId> stopped() const {
    std::vector<MemberId> members;
    for (const StopMember& stop : got<StopMember>()) members.push_back(stop.member);
    return members;
  }
  std::string said() const {
    std::string text;
    for (const Say& say : got<Say>()) text += say.text + "\n";
    return text;
  }
  // "" while it goes on, else "code: text".
  std::string ended() const {
    const auto ends = of<EndJob>(all);
    if (ends.empty()) return "";
    return std::to_string(ends.front().exit_code) + ": " + ends.front().text;
  }

  MembershipDecider decider;
  Time now{std::chrono::seconds(1000)};
  std::vector<Action> last, all;
  std::string version = "1.0", settings = "RUEDA_CACHE_CAPACITY=1\nRUEDA_TRANSPORT=tcp\n";
  std::vector<std::vector<uint64_t>> sets;
  std::map<MemberId, std::vector<uint64_t>> mirrors;  // that members say they have
};

inline Policy elastic(int np, int min_np = 1) {
  Policy policy;
  policy.elastic = true;
  policy.start_np = np;
  policy.min_np = min_np;
  return policy;
}

using Members = std::vector<MemberId>;

}  // namespace rueda::launcher::membership
