#include "runtime/engine/group_messages.h"

#include <algorithm>
#include <utility>

#include "collectives/desc/tags.h"
#include "runtime/engine/batch.h"

namespace rueda::engine {

using What = wire::GroupWord::What;

void GroupMessages::start(Request* request, std::optional<uint64_t> theirs) {
  Message& message = messages_.emplace_back();
  message.request = request;
  if (number_ == tags::kOfJob) numbers_[request->peer] = number_;
  if (!is_receive(message)) {
    if (theirs) send(&message, *theirs);
  } else if (request->peer == kAnybody || asked_.contains(tag_of(*request))) {
    match_receives(tag_of(*request));
  } else {
    receive(&message, request->peer);
  }
}

void GroupMessages::send(Message* message, uint64_t theirs) {
  const Key to(message->request->peer, tag_of(*message->request));
  begin(message, to.first, theirs);
  const uint64_t count = ++sent_[to];
  if (to.first == me_) return match_receives(to.second);
  if (wanted_.contains(to)) tell(to.first, What::kOffers, to.second, count);
}

void GroupMessages::receive(Message* message, Rank peer) {
  ++received_[{peer, tag_of(*message->request)}];
  begin(message, peer, number_);
}

void GroupMessages::begin_waiting(Rank peer, uint64_t theirs) {
  numbers_[peer] = theirs;
  for (Message& message : messages_) {
    if (!message.begun && !is_receive(message) && message.request->peer == peer)
      send(&message, theirs);
  }
}

void GroupMessages::match_receives(uint64_t tag) {
  bool waits = false;
  for (Message& message : messages_) {
    if (message.begun || !is_receive(message) || tag_of(*message.request) != tag) continue;
    std::optional<Rank> peer = message.request->peer;
    if (*peer == kAnybody) peer = sender_for(tag);
    waits = !peer;
    if (waits) break;  // what comes behind it must not take its message
    receive(&message, *peer);
  }
  if (waits && asked_.insert(tag).second) tell(kAnybody, What::kWants, tag);
  if (!waits && asked_.erase(tag) > 0) tell(kAnybody, What::kHasEnough, tag);
}

// Who has sent more of the tag than is received; the lowest first.
std::optional<Rank> GroupMessages::sender_for(uint64_t tag) {
  const Key own(me_, tag);
  if (const auto sent = sent_.find(own); sent != sent_.end() && sent->second > received_[own])
    return me_;
  for (const auto& [from, count] : offered_) {
    if (from.second == tag && count > received_[from]) return from.first;
  }
  return std::nullopt;
}

void GroupMessages::hear(Rank peer, const wire::GroupWord& word) {
  if (word.what >= What::kMeets) return hear_gpu(peer, word);
  const uint64_t tag = uint64_t{word.space} << 32 | word.tag;
  const Key key(peer, tag);
  if (word.what == What::kHasEnough) {
    wanted_.erase(key);
  } else if (word.what == What::kWants) {
    wanted_.insert(key);
    const auto sent = sent_.find(key);
    if (sent != sent_.end()) tell(peer, What::kOffers, tag, sent->second);
  } else {
    uint64_t& count = offered_[key];
    count = std::max(count, word.calls);
    match_receives(tag);
  }
}

void GroupMessages::begin(Message* message, Rank peer, uint64_t receiver) {
  Request* const request = message->request;
  const wire::Request& asked = request->announcement;
  const auto bytes = static_cast<size_t>(bytes_of(asked));
  // Both sides must name the same.
  auto meta = request->agreed != 0 ? request->agreed : static_cast<uint16_t>(asked.dtype);
  const transport::Tag tag =
      number_ == tags::kOfJob
          ? tags::of_message(request->tag_space, request->tag)
          : tags::of_group_message(static_cast<uint32_t>(receiver), request->tag);
  message->begun = true;
  message->peer = peer;
  const bool receives = is_receive(*message);
  if (receives) {
    request->set_output(request->out, asked.shape, asked.dtype, {});
    request->set_result(peer);
  }
  ByteSpan moved(receives ? request->out : const_cast<std::byte*>(request->in), bytes);
  if (is_of_gpu(*message)) {
    meta |= transport::kGpuMeta;
    message->bytes = static_cast<int64_t>(bytes);
    moved = ByteSpan(reinterpret_cast<std::byte*>(&message->bytes), sizeof(message->bytes));
  }
  if (receives) {
    transport_->recv(&message->transfer, peer, tag, moved, meta);
  } else {
    transport_->send(&message->transfer, peer, tag, moved, meta);
  }
}

void GroupMessages::tell(Rank to, What what, uint64_t tag, uint64_t count, const Status& refused) {
  wire::GroupWord word;
  word.what = what;
  word.tag = static_cast<uint32_t>(tag);
  word.space = static_cast<uint32_t>(tag >> 32);
  word.calls = count;
  word.code = refused.code();
  word.reason = refused.message();
  tell_(to, std::move(word));
}

void GroupMessages::finish(Message* message, const Status& status) {
  if (status.ok() && is_of_gpu(*message)) message->request->set_device_end(message->order.done);
  if (status.ok()) finisher_->count_message(*message->request);
  finisher_->finish(message->request, status);
}

bool GroupMessages::has_met() const {
  return std::any_of(messages_.begin(), messages_.end(), [](const Message& message) {
    return is_of_gpu(message) && message.begun && message.transfer.done() && !message.outcome;
  });
}

bool GroupMessages::advance() {
  bool moved = false;
  for (auto it = messages_.begin(); it != messages_.end();) {
    const auto at = it++;
    if (!at->begun || !at->transfer.done()) continue;
    Status status = at->transfer.status();
    if (status.ok() && is_of_gpu(*at)) {
      moved |= advance_gpu(&*at);
      if (!failure_.ok()) return true;
      if (!at->outcome) continue;
      status = *at->outcome;
    }
    std::list<Message> ended;
    ended.splice(ended.end(), messages_, at);
    finish(&ended.front(), status);
    moved = true;
  }
  return moved;
}

void GroupMessages::end_those(const Status& status,
                              const std::function<bool(const Message&)>& which) {
  std::list<Message> ended;
  for (auto it = messages_.begin(); it != messages_.end();) {
    const auto at = it++;
    if (which(*at)) ended.splice(ended.end(), messages_, at);
  }
  for (Message& message : ended) finisher_->finish(message.request, status);
}

void GroupMessages::fail_waiting(Rank peer, const Status& status) {
  end_those(status, [peer](const Message& message) {
    return !message.begun && message.request->peer == peer;
  });
}

void GroupMessages::fail_unmatched(const Status& status) {
  end_those(status, [](const Message& message) { return !message.begun && is_receive(message); });
}

void GroupMessages::fail(const Status& status) {
  std::list<Message> ended;
  ended.swap(messages_);
  for (Message& message : ended) {
    transport_->cancel(&message.transfer);
    message.copy.reset();
    finisher_->finish(message.request, status);
  }
}

}  // namespace rueda::engine
