// What the decider knows, and its steps; one file each: events.cc, seats.cc, losses.cc, forming.cc,
// drain.cc, record.cc. Nobody else includes this.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/membership/membership.h"
#include "launcher/membership/placement.h"
#include "launcher/membership/slot_history.h"

namespace rueda::launcher::membership {

enum class Stage : uint8_t {
  kStarting,  // its process was ordered
  kBuilding,  // a newcomer that builds its model
  kReady,     // a newcomer that waits to be let in
  kInEpoch,   // of the epoch that runs or ran last
  kFinished,  // ended with 0
  kGone,      // lost, removed, refused
};

struct Member {
  MemberId id = 0;
  std::string host;
  int slot = 0;
  bool spare = false;
  Stage stage = Stage::kStarting;
  Rank rank = -1;                          // in the last epoch; -1: in none
  bool answered = false;                   // has been told of the current epoch
  bool leaving = false;                    // to be removed at the next boundary
  bool stopped = false;                    // its end is no failure
  bool fenced = false;                     // none of its threads can run any more
  std::optional<wire::Standing> standing;  // it waits to enter
  std::optional<MemberId> instead_of;      // a slow one, that leaves when this one is let in
  RankPlace expected;

  bool lives() const { return stage < Stage::kFinished; }
  bool is_newcomer() const { return stage < Stage::kInEpoch; }
};

enum class Phase : uint8_t { kGathering, kRunning, kEnding, kOver };

struct MembershipDecider::State {
  explicit State(Policy p)
      : policy(std::move(p)),
        hosts(policy.cooldown, policy.seed),
        slots(policy.most_replacements, policy.replacement_span) {}

  // ---- events.cc: one for each event
  void on(const HostsFound& event);
  void on(const MemberStarted& event);
  void on(const MemberLost& event);
  void on(const MemberFenced& event);
  void on(const MemberEnded& event);
  void on(const MemberEnters& event);
  void on(const HostLost& event);
  void on(const HostDrained& event);
  void on(const MemberSlow& event);
  void on(const Tick&) {}
  void newcomer_enters(Member& member, const wire::Standing& standing);
  void finished(Member& member);
  void fence(Member& member);

  // ---- membership.cc: what follows from where things stand
  void advance();
  void announce();
  std::vector<MemberId> who_lives() const;  // of the epoch
  std::optional<Time> next_deadline() const;

  // ---- seats.cc: who sits where, who is started
  void try_start();
  void start_first();  // the members of epoch 1 that have not been told of it
  void fill_seats();
  void exchange_slow();
  bool may_exchange() const;
  int seat_cap() const;  // most ranks of an epoch, as hosts are
  int seats_taken() const;
  bool slot_comes_free() const;
  Member& add_member(const std::string& host, int slot, bool spare);
  void expect_places(const std::vector<MemberId>& started);
  void leave_what_is_gone();
  void leave(Member& member);
  void keep_slow(const Member& newcomer);
  Candidate candidate(const Member& member) const;

  // ---- drain.cc
  Result<std::string> drain_outlook(const std::string& host) const;

  // ---- losses.cc: failures and what they cost
  void lose(Member& member, const std::string& how, bool is_final = true);
  void lose_newcomer(Member& member, const std::string& how);
  void know_more(MemberId id, const std::string& how, bool is_final);
  void say_of_losses(const std::string& end);
  void say_losses();
  void blacklist(const std::string& host, const std::string& why);
  void stop(Member& member, const std::string& why);
  void begin_ending();
  void fail_job(const std::string& why);
  void fail_unheard();
  void end_job(int code, std::string text);

  // ---- forming.cc: the next epoch
  void try_form();
  void give_up_laggards();
  bool fence_is_due() const;
  bool has_hope() const;
  void refuse_other_layouts(const std::string& layout);
  std::vector<MemberId> kept_for_copies(const std::vector<MemberId>& stay) const;
  void begin_rest();
  void form(std::vector<MemberId> chosen, uint64_t target, bool fresh);
  bool within_limits(uint64_t target);
  wire::EpochBranch branch_of(const wire::NewEpoch& next) const;
  void same_again(Member& member);
  void answer(Member& member);
  void answer(const Member& member, wire::EpochAnswer how, const std::string& text);

  // ---- record.cc
  std::string record() const;
  bool restore(std::string_view bytes);
  void repeat_orders();
  void repeat_end();

  // ---- small things
  static Time after(Time from, Seconds wait) {
    return from + std::chrono::ceil<Time::duration>(wait);
  }
  bool passed(Time from, Seconds wait) const { return now >= after(from, wait); }
  template <typename What>
  // NOLINTNEXTLINE(readability-identifier-naming): what it is called is a keyword.
  void do_(What what) {
    actions.emplace_back(std::in_place_type<What>, std::move(what));
  }
  Member* find(MemberId id) {
    const auto it = members.find(id);
    return it == members.end() ? nullptr : &it->second;
  }
  std::string name_of(const Member& member) const;

  Policy policy;
  HostTable hosts;
  SlotHistory slots;
  Phase phase = Phase::kGathering;
  std::map<MemberId, Member> members;
  std::vector<MemberId> ranks;  // of the epoch that runs or ran last
  int alive = 0;                // of these
  int unanswered = 0;           // of these, who have not been told of it yet
  std::set<MemberId> awaited;   // while it ends: of these, who have not entered
  std::set<MemberId> newcomers;
  std::set<MemberId> leaving;  // of the epoch
  std::set<MemberId> slow;
  std::vector<Time> exchanges;  // of slow ones
  std::shared_ptr<const wire::NewEpoch> current;

  uint64_t epoch = 0, next_member = 0;
  uint64_t serial = 0, served = 0;  // of announcements: the last, and the last that an epoch served
  int told = 0;                     // changes that the epoch's members have been told of
  uint64_t known_commits = 0;       // the newest that anybody has spoken of
  bool begins_short = false;        // with min_np ranks, where there is no room for start_np
  bool trained = false;             // some epoch was entered by all: there may be a state
  bool finishing = false;           // a member has ended with 0: nobody is replaced any more
  std::string who_finished;         // the first
  std::optional<Time> rest_since;   // an epoch was formed after that
  int resets = 0;
  int heals = 0;  // since the last commit
  uint64_t heal_commits = 0;
  std::string version, settings;

  std::optional<Time> since;  // this phase
  Time last_loss{};
  std::optional<MemberId> lost_first;
  std::map<MemberId, Time> unfenced;   // lost members whose threads may still run, since when
  bool by_loss = false;                // the epoch ended for a loss
  bool told_end = false;               // EndEpoch was said
  std::optional<MemberId> first_left;  // says that the epoch ended, while no loss was known
  bool said_waiting = false;
  std::string culprit;  // of this ending
  std::optional<MemberId> culprit_id;
  LossLine losses;                   // of this ending, that nobody wanted
  std::vector<LossLine> loss_lines;  // of earlier ones

  std::optional<MemberId> first_failed;
  std::optional<int> first_code;
  std::string first_how;
  // Of this epoch, lost with its silent host: how it ended nobody has heard.
  std::optional<MemberId> unheard;
  std::string unheard_how;
  std::optional<Time> end_at;  // the job fails then at the latest; its exit code is awaited
  std::string end_text;
  int end_code = 0;
  bool seats_dirty = false;
  bool took_over = false;  // members may have been told what this one does not know of
  bool resumed = false;    // times in `hosts` count from the next event

  Time now{};
  std::vector<Action> actions;
};

}  // namespace rueda::launcher::membership
