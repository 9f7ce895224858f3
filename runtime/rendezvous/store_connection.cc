#include "runtime/rendezvous/store_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "proto/store_codec.h"
#include "runtime/rendezvous/store_frame.h"

namespace rueda::rendezvous {
namespace {

bool would_block(int err) { return err == EAGAIN || err == EWOULDBLOCK; }

}  // namespace

Status StoreConnection::read_requests(std::deque<wire::StoreRequest>* requests) {
  std::array<char, size_t{64} << 10> chunk;
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    if (answers_.size() + waiting.size() + requests->size() >= kMaxRequests) return {};
    // Never reads beyond the frame at hand, so input_ holds one frame at most.
    size_t frame = kFrameHeaderBytes;
    if (input_.size() >= kFrameHeaderBytes) frame += frame_length(input_);
    const size_t wanted = std::min(frame - input_.size(), chunk.size());
    if (wanted > 0) {
      const ssize_t n = ::recv(fd_.get(), chunk.data(), wanted, MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && would_block(errno)) return {};
      if (n <= 0) return cancelled("it closed the connection");
      input_.append(chunk.data(), static_cast<size_t>(n));
    }
    if (input_.size() < kFrameHeaderBytes) continue;
    const size_t length = frame_length(input_);
    if (length > kMaxFrameBytes) {
      return {Code::kDataLoss, "it sent a frame of " + std::to_string(length) +
                                   " bytes, over the limit of " + std::to_string(kMaxFrameBytes)};
    }
    if (input_.size() < kFrameHeaderBytes + length) continue;
    wire::StoreRequest request;
    const std::string_view message(input_);
    RUEDA_RETURN_IF_ERROR(wire::decode(message.substr(kFrameHeaderBytes), &request));
    requests->push_back(std::move(request));
    input_.clear();
    input_.shrink_to_fit();
  }
  return {};
}

void StoreConnection::answer(uint64_t id, const Status& status, KeyTable::Value value,
                             uint64_t number) {
  wire::StoreReply reply;
  reply.id = id;
  reply.code = status.code();
  reply.message = status.message();
  reply.number = number;
  reply.error_rank = static_cast<uint32_t>(status.facts().rank + 1);
  answers_.push_back({std::move(reply), std::move(value)});
}

Status StoreConnection::send_answers() {
  for (;;) {
    while (!answers_.empty() && output_.size() < kOutputRoom) {
      Answer& next = answers_.front();
      if (next.value != nullptr) next.reply.value = *next.value;
      output_ += framed(wire::encode(next.reply));
      answers_.pop_front();
    }
    if (output_.empty()) return {};
    const ssize_t n = ::send(fd_.get(), output_.data() + output_sent_,
                             output_.size() - output_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block(errno)) return {};
    if (n < 0) return cancelled("it closed the connection");
    output_sent_ += static_cast<size_t>(n);
    if (output_sent_ == output_.size()) {
      output_.clear();
      output_.shrink_to_fit();
      output_sent_ = 0;
    }
  }
}

}  // namespace rueda::rendezvous
