// PlanRunner: the step plan in shared memory. One persistent job for each batch of the plan, in a
// lane of its own; entering a batch fills in its addresses and starts its job.
//
// A rank's last word is one word of its arena, written once per generation:
//   generation << 40 | batches entered << 1 | 1
//
// Threads: who has the baton. Ownership: borrows the lane, arenas and ringers are shared.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collectives/communicator/lane.h"
#include "runtime/plan/plan_lane.h"
#include "runtime/flight/flight_recorder.h"
#include "runtime/submission.h"
#include "runtime/timeline/recorder.h"

namespace rueda::runtime {

class PlanRunner final : public PlanLane {
 public:
  // Ends a ticket whose batch has run.
  using Complete = std::function<void(Ticket)>;

  // arenas, ringers: by rank; ringers wake a rank for whatever it does.
  PlanRunner(Rank rank, communicator::Lane* lane, size_t lane_number,
             std::vector<std::shared_ptr<transport::Arena>> arenas,
             std::vector<transport::Ringer> ringers, timeline::Recorder* recorder,
             flight::FlightRecorder* flight, uint32_t process_set, Complete complete);

  // Moves the lane and ends the works of what has run. True if anything moved.
  bool advance();
  // The lane was abandoned: the tickets of all batches that were entered, for their error.
  std::vector<Ticket> drop();
  bool idle() const { return lane_->idle(); }
  const Status& failure() const { return lane_->failure(); }
  // Batches and their tensors that have run.
  int64_t batches() const { return batches_; }
  int64_t tensors() const { return tensors_; }
  int64_t fused_tensors() const { return fused_tensors_; }

  // PlanLane
  void begin(const StepPlan& plan, const std::vector<const wire::Request*>& requests) override;
  void enter(std::span<const Ticket> tickets) override;
  uint64_t entered() const override { return lane_->entered(); }
  uint64_t finished() const override { return ended_; }
  void revoke() override;
  std::optional<uint64_t> last_word(Rank rank) const override;
  std::vector<Ticket> withdraw(uint64_t first) override;

 private:
  struct Batch {
    communicator::Job job;
    std::vector<Ticket> tickets;  // while under way
    timeline::Nanos begun = 0;    // 0: nobody recorded then
    uint64_t templates = 0;       // in the flight recorder, of its first tensor
    uint64_t flight = 0;          // its entry there, while under way
    communicator::StageTimes times;
  };
  void prepare(Batch* batch, const PlannedBatch& planned,
               const std::vector<const wire::Request*>& requests, size_t first);
  void end(Batch* batch, uint64_t number);
  void record(Batch* batch, uint64_t number);
  std::vector<Ticket> take_from(uint64_t first);
  Batch& at(uint64_t number) { return *plan_[number % plan_.size()]; }
  std::atomic<uint64_t>& word(Rank rank) const;

  Rank rank_;
  communicator::Lane* lane_;
  size_t lane_number_;
  std::vector<std::shared_ptr<transport::Arena>> arenas_;
  std::vector<transport::Ringer> ringers_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  const uint32_t process_set_;
  Complete complete_;
  std::vector<std::unique_ptr<Batch>> plan_;
  uint64_t generation_ = 0;
  uint64_t taken_ = 0;  // by enter()
  uint64_t ended_ = 0;
  int64_t batches_ = 0;
  int64_t tensors_ = 0;
  int64_t fused_tensors_ = 0;
};

}  // namespace rueda::runtime
