// Root: the root rank's side of the agreement. Takes the ranks' request lists, gives one ordered
// response list for all.
//
//   ranks ---- RequestList (what became ready, by name or id) --------------> root: ReadinessTable
//   ranks <--- ResponseList (batches and errors, one order for all) --------- root: BatchPlanner
//
// Event-driven: a list goes out when something was decided, never on a timer. Pure: values in,
// values out; time comes from outside, bytes and ranks are the coordinator's. One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/negotiation/actions.h"
#include "runtime/negotiation/batch_planner.h"
#include "runtime/negotiation/call_sites.h"
#include "runtime/negotiation/id_table.h"
#include "runtime/negotiation/kind_conflicts.h"
#include "runtime/negotiation/protocol_chooser.h"
#include "runtime/negotiation/readiness_table.h"
#include "runtime/negotiation/steady_sizes.h"
#include "runtime/plan/plan_keeper.h"

namespace rueda::negotiation {

class Root {
 public:
  Root(const Config& config, uint64_t epoch, Members members);

  // Status: the message was damaged (an unknown number); the sender has to be given up.
  Status on_requests(Rank rank, const wire::RequestList& list, Time now);
  // All ranks can follow step plans. Without this none is frozen.
  void enable_plans() { plans_.enable(); }
  // The root rank is back from the plan (see PlanKeeper).
  void on_plan_end(uint64_t cycles, bool at_will);

  // Who has submitted what since the last call.
  std::vector<action::Arrived> take_arrivals() { return std::exchange(arrivals_, {}); }

  // The ranks answer ResponseList::where, so disagreements are told with call sites.
  void enable_call_sites() { asks_call_sites_ = true; }

  ProtocolChooser& protocols() { return protocols_; }
  // The plan's protocols were measured long ago: revoke it, so that they are measured again.
  bool plan_is_stale(Time now) const;

  // The rank is gone (in order). Idempotent.
  void on_leave(Rank rank, Time now);
  // Who left first; the root's own place while nobody else has.
  Rank first_left() const { return first_left_; }

  // What has been decided since the last call; empty: nothing to send. The same list goes to every
  // rank.
  std::optional<wire::ResponseList> take_responses(Time now);
  // When take_responses or check_stalls may have something without a new message.
  std::optional<Time> next_deadline() const;

  struct Report {
    std::string warning;  // for the log; empty: only the ranks are told
    wire::Stall stall;
  };
  // Tensors that wait for long: told to the waiting ranks early, logged after the stall time (then
  // at doubling intervals), failed after the shutdown time. known: of those that are missing, for
  // errors; "" for nothing.
  std::vector<Report> check_stalls(Time now, const std::string& known = "");
  bool stalls_due(Time now) const { return !table_.empty() && now >= next_stall_check_; }

 private:
  Status add(Rank rank, const RequestPtr& request, Time now, std::optional<CacheId> id = {});
  Status add_cached(Rank rank, CacheId id, Time now);
  void decide(Decision decision, Time now);
  void ask_where(Decision decision, Time now);
  void ask_where(KindConflicts::Conflict conflict, Time now);
  void tell_answered(Time now);
  void fail_conflict(const KindConflicts::Conflict& conflict, const CallSites::Sites& sites,
                     Time now);
  void decide_group(Decision decision);
  void decide_join(const Decision& decision, Time now);
  void on_join(Rank rank, Time now);
  void fail_split_groups(Time now);
  std::optional<CacheId> held_id(const std::string& name) const;
  void release_fresh();
  PlannedTensor planned(CacheId id, const wire::Request& request, int64_t bytes) const;
  void add_ready(Decision decision, CacheId id, Time now);
  std::optional<CacheId> known_id(const Decision& decision) const;
  std::optional<CacheId> new_id(const Decision& decision);
  std::vector<CacheId> forget_evicted(Time now);
  void add_batch(const Batch& batch, Time now);
  void add_error(const Decision& decision);
  wire::ResponseEntry entry_of(const Decision& decision);
  void recheck_awaited(const std::string& name, Time now);
  // Of a known id.
  const RequestPtr& first_of(CacheId id) const { return ids_.get(id)->requests.first(); }
  const std::string& name_of(CacheId id) const { return first_of(id)->name; }

  // root_plan.cc
  using Cycle = std::vector<std::vector<CacheId>>;
  void freeze_plan();
  void watch(const wire::Response& response);
  void give_to_plan(CacheId id);
  int64_t bytes_of_batch(const std::vector<CacheId>& ids) const;
  bool protocols_are_settled(const Cycle& cycle) const;
  bool groups_are_whole(const Cycle& cycle) const;
  bool sizes_are_steady(const Cycle& cycle) const;

  Config config_;
  uint64_t epoch_;
  Members members_;
  ReadinessTable table_;
  BatchPlanner planner_;
  KindConflicts conflicts_;
  CallSites call_sites_;
  bool asks_call_sites_ = false;
  plan::PlanKeeper plans_;
  ProtocolChooser protocols_;
  std::vector<action::Arrived> arrivals_;
  wire::StepPlan last_plan_;
  IdTable ids_;
  SteadySizes sizes_;
  std::vector<wire::Response> responses_;
  std::vector<Decision> fresh_;  // decided, not yet in a batch
  std::map<std::string, std::vector<Decision>>
      groups_;                                   // members that are ready and wait for the others
  std::map<std::string, Status> failed_groups_;  // first errors, until the message has been taken
  // Ready tensors in the planner whose part on some ranks is played by neutral contributions.
  std::map<CacheId, std::vector<Rank>> absent_of_;
  RequestPtr join_request_;
  Rank last_joined_ = 0;
  Rank first_left_ = 0;
  std::unordered_map<std::string, CacheId> id_of_;  // the id under which a name was last ready
  // Names that threads are blocked on, by rank, until they go out.
  std::unordered_map<std::string, std::vector<Rank>> awaited_;
  struct Told {
    bool ranks = false;
    double next_warning = 0;
  };
  std::map<std::string, Told> told_;

  Time next_stall_check_{};
};

}  // namespace rueda::negotiation
