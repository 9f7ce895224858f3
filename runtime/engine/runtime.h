// Runtime: one rank of one job, as its process sees it. Owns what joining gave it, the
// coordinator and its thread.
//
// Threads: any may submit and wait. Ends: shutdown() (or the destructor) leaves the job in order,
// within config.shutdown_timeout_seconds; requests outlive the runtime.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/base/config.h"
#include "collectives/host/wait_policy.h"
#include "collectives/nccl/machine.h"
#include "runtime/engine/agents.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/progress_engine.h"
#include "runtime/engine/request.h"
#include "runtime/membership/join.h"
#include "runtime/observe/counters/published.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/stats/summary.h"

namespace rueda::engine {

// One operation as the user asks for it. Memory is borrowed until the request has ended.
struct Operation {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::string name;  // "": numbered by kind
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kAverage;
  Shape shape;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // null: the request owns the result
  int device = -1;              // of input and output: -1 the host, else a GPU of this process
  cuda::StreamHandle stream = nullptr;  // GPU: what the caller has given it until now comes before
  double prescale = 1.0;
  double postscale = 1.0;
  Rank root = 0;
  Rank peer = 0;
  uint32_t tag = 0;
  std::vector<int64_t> splits;  // alltoall, scatter; empty: equal parts
  // In an ordered group. reducescatter: the rows that each member gets. allgather, gather,
  // alltoall: those that the caller expects from each.
  std::vector<int64_t> output_splits;
  // allgather, alltoall with an output: the rows that it has room for, exactly what arrives.
  int64_t output_rows = -1;
  uint32_t process_set = 0;  // root: a rank of the job all the same
  // send, recv of parts of this library: spaces of tags that do not meet (0: the users' calls), and
  // what both sides must agree on beside the size (0: the dtype).
  uint32_t tag_space = 0;
  uint16_t agreed = 0;
  uint32_t site = 0;  // where it is called from: FlightRecorder::site; 0: unknown
};

class Runtime {
 public:
  // waiting: how its threads wait where all ranks share memory; without one it is measured.
  static Result<std::unique_ptr<Runtime>> create(const Config& config,
                                                 std::unique_ptr<membership::Joined> joined,
                                                 Agents agents = {},
                                                 std::optional<host::WaitPolicy> waiting = {});
  ~Runtime();

  const Config& config() const { return config_; }
  const membership::Membership& membership() const { return joined_->membership; }
  const membership::HostMemory& host_memory() const { return joined_->memory; }
  // This rank's GPUs; nothing is opened before the first GPU tensor.
  nccl::Machine& machine() const { return *machine_; }
  // Persistent requests, to be started again and again; their memory comes with each start. group:
  // they become ready together and are reduced as one. Not for messages and joins.
  Result<std::vector<RequestPtr>> make(std::vector<Operation> operations, bool group = false);
  // Requests that are started once, now. All or none.
  Result<std::vector<RequestPtr>> start(std::vector<Operation> operations, bool group = false);
  // Starts one and waits, also for the GPU. *started stays null if nothing was.
  Status run(Operation operation, std::chrono::nanoseconds timeout, RequestPtr* started);
  // Collective over all ranks of the job, members or not: all have to call them in one order. The
  // request's result is the id of the new set; its ranks in any order.
  // A removed set's operations under way end with an error on all members.
  Result<RequestPtr> add_process_set(std::vector<int64_t> ranks, uint32_t site = 0);
  Result<RequestPtr> remove_process_set(uint32_t id, uint32_t site = 0);
  const ProcessSetTable& process_sets() const { return sets_; }
  // An ordered group (ordered_group.h) of these ranks of the job in this order, made by its members
  // alone; gives its number for Operation::process_set. Waits for nobody.
  Result<uint32_t> open_group(std::string key, std::vector<Rank> ranks, uint32_t site = 0);
  // Not collective.
  Status close_group(uint32_t group);
  // Ends everything in the group, on all members, with kCancelled, this rank's name and the reason.
  Status abort_group(uint32_t group, std::string reason);
  // Something of several ranks has failed on this one, which the runtime cannot see: everything
  // ends on all ranks, with this rank's name and the message. Any thread, callbacks too; waits for
  // nothing. No more than a remark where everything has ended already, or this rank leaves.
  void fail(const Status& cause);
  // Leaves the job, or its epoch for the next one (`goes_on`); idempotent. Afterwards every start
  // fails and every request has ended.
  void shutdown(bool goes_on = false);
  // Whether the epoch is over because of another rank: one that was lost, or that this one has lost
  // its connection to, or that has failed after it had left. Waits that long for the agents' word
  // while a loss is suspected.
  bool ended_by_loss(std::chrono::nanoseconds wait);
  // Writes a timeline from here on, as RUEDA_TIMELINE would have; one that is open is ended first.
  Status start_timeline(const std::string& path, bool mark_cycles);
  // The file is complete when it returns; nothing happens without one.
  void stop_timeline();
  // Puts a mark of the caller's into the timeline and the summary.
  void mark(const std::string& name, timeline::Mark mark);
  // What this rank did until now; empty without RUEDA_SUMMARY.
  std::optional<wire::RankSummary> summary();
  flight::FlightRecorder& flight() { return *flight_; }
  // Who was lost, with what is known of the cause by now. suspect: whom an error is about, if there
  // is no verdict yet. Any thread.
  std::optional<life::LostRank> lost(Rank suspect = -1) const;
  // As they are now. Any thread.
  counters::Values counters();
  // What this rank did since the runtime began, or since the last reset. Any thread; takes no lock
  // that a step needs.
  struct Stats {
    stats::Summary summary;
    std::vector<stats::Late> late;  // for whom its threads have waited
  };
  Stats stats(bool reset);
  // How tensors of the host reach other ranks: "shm", "tcp", "mpi", "shm+tcp", "shm+mpi".
  const char* transport() const;
  // One by its name; -1 for an unknown one.
  int64_t counter(std::string_view name);

 private:
  Runtime(const Config& config, std::unique_ptr<membership::Joined> joined, Agents agents,
          std::unique_ptr<flight::FlightRecorder> flight, std::optional<host::WaitPolicy> waiting);
  Status record(const std::string& path, bool mark_cycles);
  // runtime_requests.cc
  Result<RequestPtr> make_one(Operation operation, bool persistent);
  Result<std::vector<RequestPtr>> make_all(std::vector<Operation> operations, bool persistent,
                                           bool group);
  Result<std::vector<Request*>> claim(std::span<const RequestPtr> requests);
  Result<RequestPtr> change_sets(wire::Request change, std::string title, uint32_t site);
  // runtime_groups.cc
  Status change_group(const ProcessSetPtr& group, Request::GroupChange change, std::string reason,
                      uint32_t site);

  Config config_;
  const std::unique_ptr<membership::Joined> joined_;
  const Agents agents_;
  const std::shared_ptr<nccl::Machine> machine_;  // requests of GPU tensors keep it
  counters::Published counters_;
  ProcessSetTable sets_;
  std::shared_ptr<RequestQueue> queue_;
  std::shared_ptr<ProgressEngine> progress_;
  timeline::Recorder recorder_;
  const std::unique_ptr<flight::FlightRecorder> flight_;
  Coordinator coordinator_;
  std::mutex stats_mutex_;
  stats::Numbers stats_since_;
  stats::Stats::Nanos stats_since_ns_ = 0;
  std::thread thread_;
};

}  // namespace rueda::engine
