// For each key k of the plan, on every rank: compute a piece of what needs no message, compute with
// what came for k, answer, post the messages of k + 2, take in the answers to k - 1. At most two
// messages each way and four answers are under way, whence the slots. While one message is computed
// the next one travels, and the pieces spread what is at home over all exchanges and, where answers
// go back, behind the last one, so that a link and arithmetic of the same speed are both busy
// throughout. Nothing waits for a larger key, so the smallest unfinished exchange always proceeds.
#include "attention/ring.h"

#include <algorithm>

namespace rueda::attention {
namespace {

class Ring {
 public:
  Ring(const AttentionPlan& plan, bool backward, Link* link, const RingCalls& calls)
      : plan_(plan),
        ring_(backward ? plan.backward : plan.forward),
        backward_(backward),
        link_(link),
        calls_(calls) {
    const auto receives = std::ssize(ring_.receives), sends = std::ssize(ring_.sends);
    const auto bytes = [&](const std::vector<Hop>& hops) {
      RowBytes most;
      for (const Hop& hop : hops) {
        const RowBytes one = hop_bytes(plan_, backward_, hop);
        most.out = std::max(most.out, one.out);
        most.back = std::max(most.back, one.back);
      }
      return most;
    };
    const RowBytes in = bytes(ring_.receives), out = bytes(ring_.sends);
    in_.init(link, plan.spec.gather_first ? receives : std::min<int64_t>(2, receives), in.out);
    out_.init(link, std::min<int64_t>(2, sends), out.out);
    answers_out_.init(link, std::min<int64_t>(2, receives), in.back);
    answers_in_.init(link, std::min<int64_t>(4, sends), out.back);
  }

  Status run() {
    if (plan_.spec.gather_first) {
      for (size_t i = 0; i < ring_.receives.size(); ++i) RUEDA_RETURN_IF_ERROR(post_receive());
      // Everybody can receive everything; but answers come only when others have computed.
      while (!answered() && next_send_ < ring_.sends.size()) RUEDA_RETURN_IF_ERROR(post_send());
    }
    RUEDA_RETURN_IF_ERROR(post(1));
    for (int64_t key = 0; key < ring_.keys; ++key) {
      RUEDA_RETURN_IF_ERROR(link_->check_aborted());
      calls_.local(key);
      RUEDA_RETURN_IF_ERROR(serve(key));
      RUEDA_RETURN_IF_ERROR(post(key + 2));
      RUEDA_RETURN_IF_ERROR(absorb(key - 1));
    }
    calls_.local(ring_.keys);
    RUEDA_RETURN_IF_ERROR(absorb(ring_.keys));
    for (size_t i = 0; i < out_.slots.size(); ++i) RUEDA_RETURN_IF_ERROR(finish(&out_, i));
    for (size_t i = 0; i < answers_out_.slots.size(); ++i)
      RUEDA_RETURN_IF_ERROR(finish(&answers_out_, i));
    return {};
  }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    Link::Message message;
    const Hop* hop = nullptr;
  };
  struct Slots {
    std::vector<Slot> slots;
    void init(Link* link, int64_t count, int64_t bytes) {
      if (bytes == 0) return;
      slots.resize(static_cast<size_t>(count));
      for (Slot& slot : slots) slot.memory = link->take(bytes);
    }
    Slot& of(size_t index) { return slots[index % slots.size()]; }
  };

  bool answered() const { return !answers_in_.slots.empty(); }

  Status named(const Status& status, const Hop& hop, const char* what) const {
    if (status.ok()) return status;
    const std::string where = std::string("attention ") + (backward_ ? "backward" : "forward") +
                              ", step " + std::to_string(hop.step) + " of " +
                              std::to_string(plan_.spec.rings() - 1);
    return link_->named(status, where, what, hop.peer);
  }

  // Waits until a slot of ours has been sent.
  Status finish(Slots* slots, size_t index) {
    Slot& slot = slots->of(index);
    if (slot.message == nullptr) return {};
    const Status status = named(link_->wait(slot.message), *slot.hop, "sending to");
    slot.message.reset();
    return status;
  }

  Status post_receive() {
    const Hop& hop = ring_.receives[next_receive_];
    Slot& slot = in_.of(next_receive_++);
    auto message = link_->recv(hop.peer, slot.memory, hop_bytes(plan_, backward_, hop).out);
    if (!message.ok()) return named(message.status(), hop, "receiving from");
    slot.message = std::move(message).value();
    return {};
  }

  Status post_send() {
    const Hop& hop = ring_.sends[next_send_];
    const size_t index = next_send_++;
    const RowBytes bytes = hop_bytes(plan_, backward_, hop);
    RUEDA_RETURN_IF_ERROR(finish(&out_, index));
    Slot& slot = out_.of(index);
    calls_.pack(hop, slot.memory);
    slot.hop = &hop;
    auto message = link_->send(hop.peer, slot.memory, bytes.out);
    if (!message.ok()) return named(message.status(), hop, "sending to");
    slot.message = std::move(message).value();
    if (bytes.back == 0) return {};
    Slot& answer = answers_in_.of(index);
    auto coming = link_->recv(hop.peer, answer.memory, bytes.back, true);
    if (!coming.ok()) return named(coming.status(), hop, "receiving from");
    answer.message = std::move(coming).value();
    return {};
  }

  Status post(int64_t key) {
    while (next_receive_ < ring_.receives.size() && ring_.receives[next_receive_].key <= key)
      RUEDA_RETURN_IF_ERROR(post_receive());
    while (next_send_ < ring_.sends.size() && ring_.sends[next_send_].key <= key)
      RUEDA_RETURN_IF_ERROR(post_send());
    return {};
  }

  Status serve(int64_t key) {
    if (next_serve_ == ring_.receives.size() || ring_.receives[next_serve_].key != key) return {};
    const Hop& hop = ring_.receives[next_serve_];
    const size_t index = next_serve_++;
    Slot& slot = in_.of(index);
    RUEDA_RETURN_IF_ERROR(named(link_->wait(slot.message), hop, "receiving from"));
    slot.message.reset();
    const RowBytes bytes = hop_bytes(plan_, backward_, hop);
    if (bytes.back == 0) {
      calls_.serve(hop, slot.memory, nullptr);
      return {};
    }
    RUEDA_RETURN_IF_ERROR(finish(&answers_out_, index));
    Slot& answer = answers_out_.of(index);
    calls_.serve(hop, slot.memory, answer.memory);
    answer.hop = &hop;
    auto message = link_->send(hop.peer, answer.memory, bytes.back, true);
    if (!message.ok()) return named(message.status(), hop, "sending to");
    answer.message = std::move(message).value();
    return {};
  }

  // Answers to everything up to the key.
  Status absorb(int64_t key) {
    if (!answered()) return {};
    while (next_absorb_ < next_send_ && ring_.sends[next_absorb_].key <= key) {
      const Hop& hop = ring_.sends[next_absorb_];
      Slot& slot = answers_in_.of(next_absorb_++);
      RUEDA_RETURN_IF_ERROR(named(link_->wait(slot.message), hop, "receiving from"));
      slot.message.reset();
      calls_.absorb(hop, slot.memory);
    }
    return {};
  }

  const AttentionPlan& plan_;
  const RingPlan& ring_;
  const bool backward_;
  Link* link_;
  const RingCalls& calls_;
  Slots in_, out_, answers_out_, answers_in_;
  size_t next_receive_ = 0, next_send_ = 0, next_serve_ = 0, next_absorb_ = 0;
};

}  // namespace

Status run_ring(const AttentionPlan& plan, bool backward, Link* link, const RingCalls& calls) {
  return Ring(plan, backward, link, calls).run();
}

}  // namespace rueda::attention
