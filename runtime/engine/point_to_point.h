// PointToPoint: sends and receives under way. They are not agreed on: a send meets the recv with
// the same (peer, tag).
//
// Threads: the coordinator. finish (borrowed) completes one work; after fail_all no memory is
// touched, provided that the transport has been closed.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "collectives/transport/transport.h"
#include "runtime/engine/submission_queue.h"

namespace rueda::engine {

class PointToPoint {
 public:
  PointToPoint(transport::Transport* transport,
               std::function<void(Submission&, const Status&)> finish)
      : transport_(transport), finish_(std::move(finish)) {}

  // A submission of kind kSend or kRecv.
  void start(Submission submission);
  // True if anything ended.
  bool advance();
  void fail_all(const Status& status);

 private:
  struct Move {
    Submission submission;
    transport::TransferPtr transfer;
  };
  transport::Transport* transport_;
  std::function<void(Submission&, const Status&)> finish_;
  std::vector<Move> moves_;
};

}  // namespace rueda::engine
