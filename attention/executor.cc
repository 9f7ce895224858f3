#include "attention/executor.h"

#include <algorithm>

#include "attention/leaves.h"

namespace rueda::attention {
namespace {

// Runs a program in the order of its list: before each instruction it waits for the messages that
// come before it; everything else has ended by then.
class Execution {
 public:
  Execution(const AttentionPlan& plan, bool backward, Link* link, const Means& means)
      : plan_(plan),
        program_(make_program(plan, backward)),
        leaves_(plan, program_, means),
        link_(link),
        memory_(program_.buffers.size(), nullptr),
        slots_(program_.slots.size()),
        messages_(program_.list.size()) {
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.slot >= 0) ++slots_[static_cast<size_t>(buffer.slot)].left;
    }
  }

  template <typename T>
  void give(Role role, const T* memory) {
    const int buffer = program_.find(role);
    if (buffer < 0) return;
    // What is given is only read.
    memory_[static_cast<size_t>(buffer)] = reinterpret_cast<std::byte*>(const_cast<T*>(memory));
  }

  Status run() {
    for (const Instruction& one : program_.list) {
      for (const int earlier : one.after) RUEDA_RETURN_IF_ERROR(complete(earlier));
      if (one.op == Op::kAttend) RUEDA_RETURN_IF_ERROR(link_->check_aborted());
      for (const int buffer : one.writes) allocate(buffer);
      if (one.moves()) {
        RUEDA_RETURN_IF_ERROR(begin(one));
      } else if (one.op == Op::kFree) {
        free_buffer(one.message);
      } else {
        leaves_.perform(one, memory_);
      }
    }
    return {};
  }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    int left = 0;  // buffers that are still to be freed
  };

  Slot* slot_of(int buffer) {
    const int slot = program_.buffers[static_cast<size_t>(buffer)].slot;
    return slot < 0 ? nullptr : &slots_[static_cast<size_t>(slot)];
  }
  void allocate(int buffer) {
    Slot* slot = slot_of(buffer);
    if (slot == nullptr) return;
    if (slot->memory == nullptr)
      slot->memory = link_->take(program_.slots[static_cast<size_t>(slot - slots_.data())]);
    memory_[static_cast<size_t>(buffer)] = slot->memory;
  }
  void free_buffer(int buffer) {
    Slot* slot = slot_of(buffer);
    memory_[static_cast<size_t>(buffer)] = nullptr;
    if (--slot->left == 0) link_->give(slot->memory);
  }

  Status begin(const Instruction& one) {
    const auto place = static_cast<size_t>(one.message);
    const int64_t bytes = program_.buffers[place].bytes;
    auto message = one.op == Op::kSend ? link_->send(one.peer, memory_[place], bytes, one.answer)
                                       : link_->recv(one.peer, memory_[place], bytes, one.answer);
    if (!message.ok()) return named(message.status(), one);
    messages_[static_cast<size_t>(&one - program_.list.data())] = std::move(message).value();
    return {};
  }

  // Waits for what may still be under way.
  Status complete(int number) {
    Link::Message& message = messages_[static_cast<size_t>(number)];
    if (message == nullptr) return {};
    const Status status = named(link_->wait(message), program_.list[static_cast<size_t>(number)]);
    message.reset();
    return status;
  }

  Status named(const Status& status, const Instruction& one) const {
    if (status.ok()) return status;
    std::string where = std::string("attention ") + (program_.backward ? "backward" : "forward");
    if (one.stage == Stage::kRing) {
      const RingPlan& ring = program_.backward ? plan_.backward : plan_.forward;
      const bool ours = one.answer == (one.op == Op::kReceive);  // of what we send
      const Hop& hop = (ours ? ring.sends : ring.receives)[static_cast<size_t>(one.hop)];
      where +=
          ", step " + std::to_string(hop.step) + " of " + std::to_string(plan_.spec.rings() - 1);
    } else if (one.stage == Stage::kInward) {
      where += ", exchange of heads";
    } else {
      where += program_.backward ? ", exchange of gradients" : ", exchange of the result";
    }
    return link_->named(status, where, one.op == Op::kSend ? "sending to" : "receiving from",
                        one.peer);
  }

  const AttentionPlan& plan_;
  const Program program_;
  Leaves leaves_;
  Link* const link_;
  std::vector<std::byte*> memory_;  // by buffer
  std::vector<Slot> slots_;
  std::vector<Link::Message> messages_;  // by instruction
};

}  // namespace

Status forward(const AttentionPlan& plan, Link* link, const Means& means, const ForwardTensors& t,
               Saved* saved) {
  Saved local;
  Saved& kept = saved == nullptr ? local : *saved;
  const AttentionSpec& spec = plan.spec;
  const auto bytes = static_cast<int64_t>(size_of(spec.dtype));
  const int64_t rows = spec.batch * plan.group_tokens() * (plan.heads.q_end - plan.heads.q_begin);
  const int64_t keys = spec.batch * plan.group_keys() * (plan.heads.kv_end - plan.heads.kv_begin);
  if (spec.ulysses > 1) {
    kept.filled = true;
    kept.q.resize(static_cast<size_t>(rows * spec.head_dim * bytes));
    kept.k.resize(static_cast<size_t>(keys * spec.head_dim * bytes));
    kept.v.resize(static_cast<size_t>(keys * spec.head_dim * bytes));
    kept.lse.resize(static_cast<size_t>(rows));
  }
  // Of 16 bits the inputs' rounding is more than what lse lacks.
  if (saved != nullptr && bytes == 4) kept.lse_low.resize(static_cast<size_t>(rows));
  Execution call(plan, false, link, means);
  call.give(Role::kQ, t.q);
  call.give(Role::kK, t.k);
  call.give(Role::kV, t.v);
  call.give(Role::kOut, t.out);
  call.give(Role::kLse, t.lse);
  call.give(Role::kGroupQ, kept.q.data());
  call.give(Role::kGroupK, kept.k.data());
  call.give(Role::kGroupV, kept.v.data());
  call.give(Role::kGroupLse, kept.lse.data());
  call.give(Role::kLseLow, kept.lse_low.empty() ? nullptr : kept.lse_low.data());
  return call.run();
}

Status backward(const AttentionPlan& plan, Link* link, const Means& means, const BackwardTensors& t,
                const Saved* saved) {
  if (plan.spec.ulysses > 1 && (saved == nullptr || !saved->filled))
    return invalid_argument("attention backward: needs what its forward saved");
  Execution call(plan, true, link, means);
  call.give(Role::kDout, t.dout);
  call.give(Role::kDlse, t.dlse);
  call.give(Role::kQ, t.q);
  call.give(Role::kK, t.k);
  call.give(Role::kV, t.v);
  call.give(Role::kOut, t.out);
  call.give(Role::kLse, t.lse);
  call.give(Role::kDq, t.dq);
  call.give(Role::kDk, t.dk);
  call.give(Role::kDv, t.dv);
  if (saved != nullptr) {
    call.give(Role::kGroupQ, saved->q.data());
    call.give(Role::kGroupK, saved->k.data());
    call.give(Role::kGroupV, saved->v.data());
    call.give(Role::kGroupLse, saved->lse.data());
    call.give(Role::kLseLow, saved->lse_low.empty() ? nullptr : saved->lse_low.data());
  }
  return call.run();
}

}  // namespace rueda::attention
