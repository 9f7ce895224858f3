#include "runtime/engine/point_to_point.h"

#include <utility>

namespace rueda::engine {

void PointToPoint::start(Submission submission) {
  const wire::Request& request = submission.request;
  const size_t bytes = static_cast<size_t>(element_count(request.shape)) * size_of(request.dtype);
  const transport::Tag tag = transport::kRendezvousTag |
                             transport::Tag{submission.tag_space & 0x3fffffff} << 32 |
                             submission.tag;
  // Both sides must name the same.
  const auto meta =
      submission.agreed != 0 ? submission.agreed : static_cast<uint16_t>(request.dtype);
  transport::TransferPtr transfer;
  if (request.kind == CollectiveKind::kSend) {
    transfer = transport_->send(submission.peer, tag, {submission.in, bytes}, meta);
  } else {
    submission.work->set_output(submission.out, request.shape, request.dtype, {});
    transfer = transport_->recv(submission.peer, tag, {submission.out, bytes}, meta);
  }
  moves_.push_back({std::move(submission), std::move(transfer)});
}

bool PointToPoint::advance() {
  bool moved = false;
  for (auto it = moves_.begin(); it != moves_.end();) {
    if (!it->transfer->done) {
      ++it;
      continue;
    }
    Move ended = std::move(*it);
    it = moves_.erase(it);
    finish_(ended.submission, ended.transfer->status);
    moved = true;
  }
  return moved;
}

void PointToPoint::fail_all(const Status& status) {
  std::vector<Move> ended = std::move(moves_);
  moves_.clear();
  for (Move& move : ended) finish_(move.submission, status);
}

}  // namespace rueda::engine
