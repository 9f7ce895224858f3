// PlanRunner: the step plan in shared memory. One persistent job for each batch of the plan, in a
// channel of its own; entering a batch fills in its addresses and starts its job.
//
// A batch of GPU tensors has a job that moves nothing: it is done when all ranks have entered the
// batch, and only then NCCL is called, because what a GPU has been given cannot be withdrawn.
//
//   enter --> job in the channel --> done here                                        --> works end
//                             \-> GPU: all ranks have entered --> NCCL is called --/
//
// A rank's last word is one word of its arena, written once per generation:
//   generation << 40 | batches entered << 1 | 1
//
// Threads: who holds the progress lock. Ownership: borrows the channel, arenas and ringers are
// shared.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/nccl/device_communicator.h"
#include "collectives/shm/channel.h"
#include "runtime/engine/submission.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/timeline/recorder.h"
#include "runtime/plan/plan_channel.h"

namespace rueda::engine {

class PlanRunner final : public plan::PlanChannel {
 public:
  // Ends a ticket whose batch has run, or was refused alike on all ranks.
  using Complete = std::function<void(plan::Ticket, const Status&)>;

  // device: for batches of GPU tensors, the plan's alone. Borrowed.
  // arenas, ringers: by rank; ringers wake a rank for whatever it does.
  PlanRunner(Rank rank, shm::Channel* channel, size_t channel_number,
             nccl::DeviceCommunicator* device, std::vector<std::shared_ptr<host::Arena>> arenas,
             std::vector<host::Ringer> ringers, timeline::Recorder* recorder,
             flight::FlightRecorder* flight, uint32_t process_set, Complete complete);

  // Moves the channel and ends the works of what has run. True if anything moved.
  bool advance();
  // The channel was abandoned: the tickets of all batches that were entered, for their error.
  std::vector<plan::Ticket> drop();
  bool idle() const { return channel_->idle() && called_ == ended_; }
  const Status& failure() const {
    return device_failure_.ok() ? channel_->failure() : device_failure_;
  }
  // Batches and their tensors that have run.
  int64_t batches() const { return batches_; }
  int64_t tensors() const { return tensors_; }
  int64_t fused_tensors() const { return fused_tensors_; }

  // PlanChannel
  void begin(const plan::StepPlan& plan,
             const std::vector<const wire::Request*>& requests) override;
  void enter(std::span<const plan::Ticket> tickets) override;
  uint64_t entered() const override { return channel_->entered(); }
  uint64_t finished() const override { return ended_; }
  bool starting() const override { return device_->starting(); }
  void revoke() override;
  std::optional<uint64_t> last_word(Rank rank) const override;
  std::vector<plan::Ticket> withdraw(uint64_t first) override;

 private:
  // What NCCL is asked for. order: the streams before and behind it.
  struct DeviceCall {
    shm::Job wanted;  // as a description; it is in no channel
    nccl::StreamOrder order;
    Task task;
    void reset();
  };
  struct Batch {
    shm::Job job;                       // in the channel
    std::unique_ptr<DeviceCall> call;   // of GPU tensors
    std::vector<plan::Ticket> tickets;  // while under way
    timeline::Nanos begun = 0;          // 0: nobody recorded then
    uint64_t templates = 0;             // in the flight recorder, of its first tensor
    uint64_t flight = 0;                // its entry there, while under way
    StageTimes times;
  };
  void prepare(Batch* batch, const plan::PlannedBatch& planned,
               const std::vector<const wire::Request*>& requests, size_t first);
  void call_device(Batch* batch);
  Task device_task(Batch* batch);
  std::byte* give_output(Submission* submission, Shape shape);
  bool advance_calls();
  void end(Batch* batch, uint64_t number);
  void record(Batch* batch, uint64_t number);
  std::vector<plan::Ticket> take_from(uint64_t first);
  Batch& at(uint64_t number) { return *plan_[number % plan_.size()]; }
  std::atomic<uint64_t>& word(Rank rank) const;

  Rank rank_;
  shm::Channel* channel_;
  size_t channel_number_;
  nccl::DeviceCommunicator* device_;
  std::vector<std::shared_ptr<host::Arena>> arenas_;
  std::vector<host::Ringer> ringers_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  const uint32_t process_set_;
  Complete complete_;
  std::vector<std::unique_ptr<Batch>> plan_;
  uint64_t generation_ = 0;
  uint64_t taken_ = 0;   // by enter()
  uint64_t called_ = 0;  // of GPU tensors: NCCL's turn has come; of others: done
  uint64_t ended_ = 0;
  Status device_failure_;
  int64_t batches_ = 0;
  int64_t tensors_ = 0;
  int64_t fused_tensors_ = 0;
};

}  // namespace rueda::engine
