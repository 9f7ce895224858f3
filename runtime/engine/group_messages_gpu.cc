// Messages of GPU tensors: what comes behind their meeting.
#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/check.h"
#include "runtime/engine/batch.h"
#include "runtime/engine/group_messages.h"

namespace rueda::engine {

using What = wire::GroupWord::What;

// The one that the peer speaks of: it names them in the order of their tag.
GroupMessages::Message* GroupMessages::first_unmet(CollectiveKind kind, Rank peer, uint64_t tag) {
  const auto first = std::find_if(messages_.begin(), messages_.end(), [&](const Message& message) {
    return message.begun && is_of_gpu(message) && message.request->announcement.kind == kind &&
           message.peer == peer && tag_of(*message.request) == tag && !message.outcome &&
           message.copy == nullptr && message.met == (kind == CollectiveKind::kRecv);
  });
  return first == messages_.end() ? nullptr : &*first;
}

void GroupMessages::hear_gpu(Rank peer, const wire::GroupWord& word) {
  const bool of_send = word.what == What::kMeets;
  const uint64_t tag = uint64_t{word.space} << 32 | word.tag;
  Message* const message =
      first_unmet(of_send ? CollectiveKind::kSend : CollectiveKind::kRecv, peer, tag);
  if (message == nullptr) return;  // it has failed here
  if (!of_send) return go(message);
  message->met = true;
  if (word.code != Code::kOk) {
    message->outcome = Status(word.code, word.reason);
    return;
  }
  if (me_ < peer) tell(peer, What::kGoes, tag);
  go(message);
}

bool GroupMessages::advance_gpu(Message* message) {
  bool moved = false;
  if (is_receive(*message) && !message->met && !message->outcome) moved = meet(message);
  if (message->copy == nullptr) return moved;
  moved |= message->copy->advance();
  if (!message->copy->done()) return moved;
  const Status& status = message->copy->status();
  if (!status.ok() && !nccl::is_refusal(status)) {
    failure_ = status;
    return true;
  }
  message->outcome = status;
  if (message->sent != nullptr) {
    message->sent->outcome = status;
    message->sent->order.done = message->order.done;
  }
  return true;
}

// The size has come that the sender has. False: its hello has not come yet.
bool GroupMessages::meet(Message* receive) {
  const Rank peer = receive->peer;
  if (!numbers_.contains(peer)) return false;
  const uint64_t tag = tag_of(*receive->request);
  receive->met = true;
  Message* const sent = peer == me_ ? first_unmet(CollectiveKind::kSend, peer, tag) : nullptr;
  RUEDA_CHECK(peer != me_ || sent != nullptr, "a message to itself that nobody has sent");
  const int64_t room = bytes_of(receive->request->announcement);
  if (receive->bytes != room) {
    const Status refused = failed_precondition(
        fmt::format("sizes differ: rank {} sends {} bytes on a GPU, rank {} expects {}", peer,
                    receive->bytes, me_, room));
    receive->outcome = refused;
    if (sent != nullptr) {
      sent->outcome = refused;
    } else {
      tell(peer, What::kMeets, tag, 0, refused);
    }
    return true;
  }
  if (peer == me_) {
    sent->met = true;
    receive->sent = sent;
  } else {
    tell(peer, What::kMeets, tag);
  }
  if (me_ <= peer) go(receive);
  return true;
}

// NCCL's turn, in the order that both ranks have.
void GroupMessages::go(Message* message) {
  const Rank peer = message->peer;
  nccl::DeviceCommunicator* const pair =
      devices_.pair(peer, static_cast<uint32_t>(numbers_[std::min(me_, peer)]));
  const auto size = static_cast<size_t>(pair->size());
  const auto me = static_cast<size_t>(pair->rank());
  const size_t other = size - 1 - me;
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kAlltoall;
  desc.counts.assign(size * size, 0);
  const bool receives = is_receive(*message);
  desc.counts[receives ? other * size + me : me * size + other] = message->bytes;
  message->order.device = message->request->device;
  cuda::add_mark(&message->order.ready, message->request->ready);
  auto made = pair->init(std::move(desc));
  if (!made.ok()) {
    failure_ = made.status();
    return;
  }
  message->copy = std::move(made).value();
  Part& part = message->copy->tensors()[0];
  if (receives) part.out = message->request->out;
  if (!receives) part.in = message->request->in;
  if (message->sent != nullptr) {
    part.in = message->sent->request->in;
    cuda::add_mark(&message->order.ready, message->sent->request->ready);
  }
  message->copy->start({nullptr, &message->order});
}

void GroupMessages::fail_met(Rank peer, const Status& status) {
  end_those(status, [peer](const Message& message) {
    return is_of_gpu(message) && message.begun && message.transfer.done() && message.peer == peer &&
           message.copy == nullptr && !message.outcome;
  });
}

}  // namespace rueda::engine
