#include "attention/host_calls.h"

#include "attention/executor.h"
#include "attention/leaves.h"
#include "attention/link_messages.h"

namespace rueda::attention {
namespace {

// Memory is the link's, which outlives messages that are still under way.
class HostWork final : public Work {
 public:
  HostWork(const AttentionPlan& plan, const Program& program, Link* link, const Means& means)
      : leaves_(plan, program, means), link_(link) {}
  Result<std::byte*> take(int, int64_t bytes) override { return link_->take(bytes); }
  void give(int, std::byte* memory) override { link_->give(memory); }
  Status perform(int, const Instruction& one, std::span<std::byte* const> memory) override {
    leaves_.perform(one, memory);
    return {};
  }

 private:
  Leaves leaves_;
  Link* const link_;
};

class HostCall {
 public:
  HostCall(const AttentionPlan& plan, bool backward, Link* link, const Means& means)
      : messages_(plan, program_of(plan, backward), link),
        work_(plan, program_of(plan, backward), link, means),
        executor_(program_of(plan, backward), &messages_, &work_) {}
  template <typename T>
  void give(Role role, const T* memory) {
    executor_.give(role, memory);
  }
  // What forward writes and backward reads.
  void give(const Saved& kept) {
    give(Role::kGroupQ, kept.q.data());
    give(Role::kGroupK, kept.k.data());
    give(Role::kGroupV, kept.v.data());
    give(Role::kGroupLse, kept.lse.data());
    give(Role::kLseLow, kept.lse_low.empty() ? nullptr : kept.lse_low.data());
  }
  Status run() { return executor_.go_on().status(); }

 private:
  LinkMessages messages_;
  HostWork work_;
  Executor executor_;
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
  HostCall call(plan, false, link, means);
  call.give(Role::kQ, t.q);
  call.give(Role::kK, t.k);
  call.give(Role::kV, t.v);
  call.give(Role::kOut, t.out);
  call.give(Role::kLse, t.lse);
  call.give(kept);
  return call.run();
}

Status backward(const AttentionPlan& plan, Link* link, const Means& means, const BackwardTensors& t,
                const Saved* saved) {
  if (plan.spec.ulysses > 1 && (saved == nullptr || !saved->filled))
    return invalid_argument("attention backward: needs what its forward saved");
  HostCall call(plan, true, link, means);
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
  if (saved != nullptr) call.give(*saved);
  return call.run();
}

}  // namespace rueda::attention
