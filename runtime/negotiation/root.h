// Root: the root rank's side of the agreement. Takes the ranks' request lists, gives one ordered
// response list for all.
//
//   ranks ---- RequestList (what became ready, by name or number) ---->  root: ReadinessTable,
//   BatchPlanner ranks <--- ResponseList (batches and errors, one order for all) ---  root
//
// Event-driven: a list goes out when something was decided, never on a timer. Pure: time comes from
// outside, bytes and ranks are the coordinator's. One thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collectives/base/config.h"
#include "runtime/negotiation/arrivals.h"
#include "runtime/negotiation/batch_planner.h"
#include "runtime/negotiation/call_sites.h"
#include "runtime/negotiation/kind_conflicts.h"
#include "runtime/negotiation/protocol_chooser.h"
#include "runtime/negotiation/readiness_table.h"
#include "runtime/negotiation/response_cache.h"
#include "runtime/plan/plan_keeper.h"

namespace rueda::negotiation {

class Root {
 public:
  // cache: the root rank's own, filled by its coordinator from the responses like everybody's.
  // Borrowed.
  Root(const Config& config, uint64_t epoch, Members members, ResponseCache* cache);

  // Status: the message was damaged (an unknown number); the sender has to be given up.
  Status on_requests(Rank rank, const wire::RequestList& list, Time now);
  // All ranks can follow step plans. Without this none is frozen.
  void enable_plans() { plans_.enable(); }
  // The root rank is back from the plan (see PlanKeeper).
  void on_plan_end(uint64_t cycles, bool at_will) { plans_.on_end(cycles, at_will); }

  // Borrowed; null: nobody listens.
  void listen(Arrivals* arrivals) { arrivals_ = arrivals; }

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

  // What is known of those that are missing, for errors; "" for nothing.
  void explain_with(std::function<std::string()> explain) { explain_ = std::move(explain); }
  struct Report {
    std::string warning;  // for the log; empty: only the ranks are told
    wire::Stall stall;
  };
  // Tensors that wait for long: told to the waiting ranks early, logged after the stall time (then
  // at doubling intervals), failed after the shutdown time.
  std::vector<Report> check_stalls(Time now);

 private:
  Status add(Rank rank, const RequestPtr& request, Time now);
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
  void freeze_plan();
  void give_to_plan(CacheId id);
  int64_t bytes_of_batch(const std::vector<uint32_t>& ids) const;
  bool protocols_are_settled(const std::vector<std::vector<uint32_t>>& cycle) const;
  bool groups_are_whole(const std::vector<std::vector<uint32_t>>& cycle) const;
  void add_batch(const Batch& batch, Time now);
  void add_error(const wire::Request& request, const Status& status);
  wire::ResponseEntry entry_of(const Decision& decision);
  void recheck_wants(const std::string& name, Time now);
  std::string fuse_key(const wire::Request& request) const;
  static int64_t bytes_of(const wire::Request& request);

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
  Arrivals* arrivals_ = nullptr;
  wire::StepPlan last_plan_;
  ResponseCache* cache_;
  std::vector<wire::Response> responses_;
  std::vector<Decision> fresh_;  // decided, not yet in a batch
  std::map<std::string, std::vector<Decision>>
      groups_;                                   // members that are ready and wait for the others
  std::map<std::string, Status> failed_groups_;  // first errors, until the message has been taken
  std::map<CacheId, std::string> name_of_;
  // Ready tensors in the planner whose part on some ranks is played by neutral contributions.
  std::map<CacheId, std::vector<Rank>> absent_of_;
  RequestPtr join_request_;
  Rank last_joined_ = 0;
  Rank first_left_ = 0;
  std::unordered_map<std::string, CacheId> id_of_;  // the number under which a name was last ready
  // Names that threads are blocked on, by rank, until they go out.
  std::unordered_map<std::string, std::vector<Rank>> wanted_;
  struct Told {
    bool ranks = false;
    double next_warning = 0;
  };
  std::map<std::string, Told> told_;
  std::pair<double, const char*> stall_limit() const;

  std::function<std::string()> explain_;
  Time next_stall_check_{};
};

}  // namespace rueda::negotiation
