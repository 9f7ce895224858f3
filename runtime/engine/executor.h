// Executor: turns what was agreed on into collectives, and their ends into ended operations. There
// is one for each group; everything goes through it, whichever way it was agreed on:
//
//   negotiated, cached   launch(response)   a collective made for this batch, started now
//   step plan            enter(handles)     a persistent collective, made when the plan began
//   point-to-point       start(request)     no agreement: a message meets its counterpart
//
//   batch --> Collective on the host's communicator -------------------------> ended: requests end
//        \--> of GPU tensors, planned: a meeting first, then NCCL's collective --/
//
// What is planned has communicators of its own: its order and that of what is negotiated beside it
// do not meet. A batch of GPU tensors in a plan begins with a collective of nothing, which ends
// when all ranks have entered the batch, and only then NCCL is called, because what a GPU has been
// given cannot be withdrawn.
//
// That a rank has entered a batch is known by its data. Its last word on a plan, how many batches
// it has entered, is told once per generation: where all members share memory as a word of its
// arena,
//
//   generation << 40 | batches entered << 1 | 1
//
// else as a message to each of them, the only one that a plan ever sends.
//
// Threads: who holds the progress lock. Ownership: borrows what it is given.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "collectives/algorithms/native_communicator.h"
#include "collectives/nccl/device_communicator.h"
#include "proto/messages.h"
#include "runtime/engine/batch.h"
#include "runtime/engine/request.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/timeline/recorder.h"
#include "runtime/plan/step_plan.h"

namespace rueda::engine {

class Executor {
 public:
  struct Communicators {
    algorithms::NativeCommunicator* negotiated = nullptr;
    nccl::DeviceCommunicator* negotiated_device = nullptr;
    algorithms::NativeCommunicator* planned = nullptr;
    nccl::DeviceCommunicator* planned_device = nullptr;
  };
  // How a group's ranks see each other's last words: by group rank, in memory that all share, or
  // told.
  struct LastWords {
    std::vector<std::atomic<uint64_t>*> words;  // empty: told
    std::vector<host::Ringer> ringers;          // wake a rank for whatever it does
    std::function<void(uint64_t generation, uint64_t entered)> tell;  // all other members
  };
  // What the executor tells of an operation that has ended. A handle is one that enter() was given.
  struct Ends {
    std::function<void(Request*, const Status&)> finish;
    std::function<void(plan::OpHandle, const Status&)> complete;
  };

  Executor(transport::Transport* transport, const Communicators& communicators,
           LastWords last_words, timeline::Recorder* recorder, flight::FlightRecorder* flight,
           uint32_t process_set, Ends ends);
  ~Executor();

  // response.entries[i] and sizes[i] belong to members[i].
  void launch(const wire::Response& response, std::vector<Request*> members,
              const std::vector<SizesPtr>& sizes);
  // A send or receive; its failure is its own.
  void start(Request* message);
  // Something of the runtime's own beside the batches; its failure is the executor's.
  void run(std::unique_ptr<Collective> collective);

  // True if anything moved. A failed batch leaves its status in failure().
  bool advance();
  // The part of it that a planned batch needs.
  bool advance_plan();
  bool plan_is_idle() const { return entered_ == ended_; }
  // Nothing that was agreed on is under way.
  bool idle() const { return running_.empty() && plan_is_idle(); }
  const Status& failure() const { return failure_; }

  // The communicators have been abandoned: ends everything under way with this status, but what
  // enter() was given, whose handles it returns.
  std::vector<plan::OpHandle> fail_all(const Status& status);
  void fail_messages(const Status& status);

  struct Totals {
    int64_t batches = 0;  // planned ones included
    int64_t planned_batches = 0;
    int64_t tensors = 0;
    int64_t fused_tensors = 0;
  };
  const Totals& totals() const { return totals_; }

  // ---- the step plan (runtime/plan/step_plan.h says what each means)
  // All ranks have ended the generation before. requests: of its members, batch by batch; borrowed
  // for the call.
  void begin_plan(const plan::StepPlan& plan, const std::vector<const wire::Request*>& requests,
                  std::span<const SizesPtr> sizes);
  // Allocates nothing where outputs are given.
  void enter(std::span<const plan::OpHandle> handles);
  void revoke(uint64_t last_word);
  // A member has told its own; of a plan that may not have begun here yet.
  void hear_last_word(Rank of, uint64_t generation, uint64_t entered);
  // Batches of this generation that have run to their end here.
  uint64_t finished() const { return ended_; }
  bool starting() const;
  // Empty while the rank has not revoked, or is not seen to have.
  std::optional<uint64_t> last_word(Rank rank) const;
  // All before `first` have ended here. The rest is forgotten; gives its handles back, in order.
  std::vector<plan::OpHandle> end_plan(uint64_t first);

 private:
  struct Batch;
  struct Negotiated;
  struct Planned;
  struct Message {
    Request* request = nullptr;
    transport::Transfer transfer;
  };

  Rank rank() const { return on_.negotiated->rank(); }
  Rank size() const { return on_.negotiated->size(); }
  void count(size_t tensors);
  void record(const Batch& batch, std::span<Request* const> members);

  // executor.cc
  bool advance_running();
  bool advance_messages();
  void end(Negotiated* batch, const Status& status);

  // executor_plan.cc
  void reserve_messages();
  std::unique_ptr<Planned> prepare(const plan::PlannedBatch& planned,
                                   std::span<const wire::Request* const> requests,
                                   std::span<const SizesPtr> sizes);
  Planned& at(uint64_t number) { return *plan_[number % plan_.size()]; }
  bool call_devices();
  void collect_members(const Planned& batch);  // into members_
  void end(Planned* batch);

  transport::Transport* transport_;
  const Communicators on_;
  const LastWords last_words_;
  // Last words by group rank, packed as in memory, where they are told.
  std::vector<uint64_t> told_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  const uint32_t process_set_;
  const Ends ends_;
  std::deque<std::unique_ptr<Negotiated>> running_;  // in their order
  std::vector<std::unique_ptr<Collective>> own_;     // of run()
  std::list<Message> messages_;
  std::vector<Request*> members_;  // of the batch that is being looked at; kept for its memory
  std::vector<std::unique_ptr<Planned>> plan_;
  bool plan_on_devices_ = false;  // some of it
  uint64_t generation_ = 0;
  uint64_t entered_ = 0;
  // Entered by all ranks: of GPU tensors, NCCL's turn has come; others have ended.
  uint64_t met_ = 0;
  uint64_t ended_ = 0;  // here
  Status failure_;
  Totals totals_;
};

}  // namespace rueda::engine
