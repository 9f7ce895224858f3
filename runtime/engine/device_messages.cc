#include "runtime/engine/device_messages.h"

#include <utility>

#include "collectives/desc/tags.h"
#include "proto/negotiation_codec.h"

namespace rueda::engine {

DeviceMessages::DeviceMessages(transport::Transport* transport,
                               const membership::Membership* membership,
                               std::shared_ptr<nccl::Machine> machine, Finisher* finisher)
    : transport_(transport),
      membership_(*membership),
      finisher_(finisher),
      devices_(transport, membership, std::move(machine)),
      messages_(transport, finisher, &devices_, membership->rank, tags::kOfJob,
                [this](Rank to, wire::GroupWord word) {
                  word.epoch = membership_.epoch;
                  word.number = tags::kOfJob;
                  transport_->send_control(to, wire::encode(word));
                }) {}

void DeviceMessages::start(Request* request) {
  if (request->ready.captured) {
    return finisher_->finish(
        request, failed_precondition(
                     "its stream is being captured into a CUDA graph, which no send or receive can "
                     "be part of: what it waits for comes from another rank each time"));
  }
  messages_.start(request, tags::kOfJob);
}

void DeviceMessages::on_peer_left(Rank peer, Time now) {
  messages_.fail_met(peer, cancelled(membership_.name(peer) + " has shut down").with_rank(peer));
  if (!devices_.idle()) gone_[peer] = now + kPatience;
}

bool DeviceMessages::step(Time now) {
  if (!failure_.ok()) return false;
  const bool moved = !messages_.empty() && messages_.advance();
  failure_ = messages_.failure().ok() ? devices_.health() : messages_.failure();
  for (auto it = gone_.begin(); it != gone_.end();) {
    const auto at = it++;
    const bool late = now >= at->second;
    if (late && failure_.ok() && devices_.abandon_pair(at->first)) {
      failure_ = cancelled(membership_.name(at->first) +
                           " has shut down while a GPU waited for its message")
                     .with_rank(at->first);
    }
    if (late || devices_.idle()) gone_.erase(at);
  }
  return moved || !failure_.ok();
}

std::optional<DeviceMessages::Time> DeviceMessages::deadline() const {
  std::optional<Time> earliest;
  for (const auto& [peer, until] : gone_) {
    if (!earliest || until < *earliest) earliest = until;
  }
  return earliest;
}

void DeviceMessages::fail(const Status& status) {
  devices_.abandon();
  messages_.fail(status);
}

}  // namespace rueda::engine
