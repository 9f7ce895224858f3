#include "attention/link_messages.h"

namespace rueda::attention {

Status LinkMessages::begin(int number, const Instruction& one, std::byte* memory, int64_t bytes) {
  auto message = one.op == Op::kSend ? link_->send(one.peer, memory, bytes, one.answer)
                                     : link_->recv(one.peer, memory, bytes, one.answer);
  if (!message.ok()) return named(message.status(), one);
  messages_[static_cast<size_t>(number)] = std::move(message).value();
  return {};
}

Result<bool> LinkMessages::complete(int number, const Instruction& one) {
  Link::Message& message = messages_[static_cast<size_t>(number)];
  RUEDA_RETURN_IF_ERROR(named(link_->wait(message), one));
  message.reset();
  return true;
}

Status LinkMessages::named(const Status& status, const Instruction& one) const {
  if (status.ok()) return status;
  std::string where = std::string("attention ") + (program_.backward ? "backward" : "forward");
  if (one.stage == Stage::kRing) {
    const RingPlan& ring = program_.backward ? plan_.backward : plan_.forward;
    const bool ours = one.answer == (one.op == Op::kReceive);  // of what we send
    const Hop& hop = (ours ? ring.sends : ring.receives)[static_cast<size_t>(one.hop)];
    where += ", step " + std::to_string(hop.step) + " of " + std::to_string(plan_.spec.rings() - 1);
  } else if (one.stage == Stage::kInward) {
    where += ", exchange of heads";
  } else {
    where += program_.backward ? ", exchange of gradients" : ", exchange of the result";
  }
  return link_->named(status, where, one.op == Op::kSend ? "sending to" : "receiving from",
                      one.peer);
}

}  // namespace rueda::attention
