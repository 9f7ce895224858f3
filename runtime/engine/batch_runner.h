// BatchRunner: turns an agreed batch into a collective on the communicator, and its end into ended
// works.
//
// Threads: the coordinator. Several batches may be under way; they are started in the agreed order.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/desc/communicator.h"
#include "collectives/nccl/device_communicator.h"
#include "proto/messages.h"
#include "runtime/engine/submission.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/timeline/recorder.h"

namespace rueda::engine {

// Bytes of its tensor.
int64_t bytes_of(const wire::Request& request);
// Reducescatter: elements of each rank's share of a tensor, and the shape of one rank's.
std::vector<int64_t> shard_counts(const Shape& shape, Rank size);
Shape shard_shape(Shape shape, Rank rank, Rank size);
// Of a request whose scaling was checked when it was submitted.
Scaling scaling_of(const wire::Request& request, Rank size);

class BatchRunner {
 public:
  // finish: completes one work (and frees its name). The pointers are borrowed.
  // device: for GPU tensors; a batch of them ends when it has been given to the GPU.
  BatchRunner(Communicator* communicator, nccl::DeviceCommunicator* device,
              timeline::Recorder* recorder, flight::FlightRecorder* flight,
              std::function<void(Submission&, const Status&)> finish)
      : communicator_(communicator),
        device_(device),
        recorder_(recorder),
        flight_(flight),
        finish_(std::move(finish)) {}

  // response.entries[i] belongs to members[i].
  void start(const wire::Response& response, std::vector<Pending> members);
  // Something of the runtime's own beside the batches; its failure is the runner's.
  void run(Task task);
  // True if anything moved. A failed batch leaves its status in failure().
  bool advance();
  bool idle() const { return running_.empty(); }
  const Status& failure() const { return failure_; }
  // Ends everything under way with this status. The communicator must have been abandoned before.
  void fail_all(const Status& status);
  int64_t batches() const { return batches_; }
  int64_t tensors() const { return tensors_; }
  int64_t fused_tensors() const { return fused_tensors_; }

 private:
  struct Running {
    CollectiveKind kind;
    std::vector<Pending> members;
    Task task;
    std::chrono::steady_clock::time_point began;
    int64_t number;
    std::unique_ptr<StageTimes> times;         // while somebody records
    std::unique_ptr<nccl::StreamOrder> order;  // of GPU tensors
  };
  // on: of the batch's memory. A result of unknown size lies there too.
  Task make_task(Communicator* on, CollectiveKind kind, std::vector<Pending>* members,
                 const std::vector<wire::ResponseEntry>& entries);
  Task make_allgather(Communicator* on, std::vector<Pending>* members,
                      const std::vector<wire::ResponseEntry>& entries);
  Task make_reducescatter(Communicator* on, Submission* submission);
  Task make_alltoall(Communicator* on, Submission* submission, const wire::ResponseEntry& entry);
  std::byte* output_of(Submission* submission, std::byte* given, Shape shape,
                       std::vector<int64_t> rows);
  void record(Running* batch, std::chrono::steady_clock::time_point ended, int64_t bytes);
  void end(Running* batch, const Status& status);

  Communicator* communicator_;
  nccl::DeviceCommunicator* device_;
  timeline::Recorder* recorder_;
  flight::FlightRecorder* flight_;
  std::function<void(Submission&, const Status&)> finish_;
  std::deque<Running> running_;
  Status failure_;
  Status no_memory_;  // on the GPU, for a result
  int64_t batches_ = 0;
  int64_t tensors_ = 0;
  int64_t fused_tensors_ = 0;
};

}  // namespace rueda::engine
