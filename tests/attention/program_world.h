// An interpreter of attention programs: all ranks in one process, in any order that the programs
// allow, drawn from a seed. Memory that is not written yet or freed is NaN.
#pragma once

#include <map>
#include <tuple>

#include "attention/leaves.h"
#include "tests/attention/attention_world.h"

namespace rueda::testing {

using Bytes = std::vector<std::byte>;

class ProgramWorld {
 public:
  struct Member {
    const attention::AttentionPlan* plan;
    attention::Program program;
    std::map<attention::Role, Bytes> tensors;  // of the caller, and what forward keeps
  };

  ProgramWorld(std::vector<Member>* members, uint64_t seed) : engine_(seed) {
    for (Member& member : *members) {
      auto rank = std::make_unique<RankState>(*member.plan, member.program);
      rank->memory.resize(member.program.buffers.size(), nullptr);
      rank->state.resize(member.program.list.size(), kWaits);
      for (const int64_t bytes : member.program.slots)
        rank->slots.emplace_back(static_cast<size_t>(bytes) + 64, kPoison);
      for (size_t b = 0; b < member.program.buffers.size(); ++b) {
        const auto& buffer = member.program.buffers[b];
        rank->memory[b] = buffer.slot >= 0 ? rank->slots[static_cast<size_t>(buffer.slot)].data()
                                           : member.tensors.at(buffer.role).data();
      }
      ranks_.push_back(std::move(rank));
    }
  }

  // False: nothing may run, and not everything has.
  bool run() {
    for (;;) {
      std::vector<std::pair<size_t, size_t>> ready;
      size_t left = 0;
      for (size_t r = 0; r < ranks_.size(); ++r) {
        std::map<std::tuple<bool, bool, Rank>, bool> held;  // channels whose next has not begun
        for (size_t i = 0; i < ranks_[r]->state.size(); ++i) {
          const attention::Instruction& one = ranks_[r]->program.list[i];
          if (ranks_[r]->state[i] != kDone) ++left;
          if (ranks_[r]->state[i] != kWaits) continue;
          bool may = may_run(*ranks_[r], one);
          if (one.moves()) {
            bool& before = held[{one.op == attention::Op::kSend, one.answer, one.peer}];
            may = may && !before;
            before = true;
          }
          if (may) ready.emplace_back(r, i);
        }
      }
      // A message that both ends have begun completes some time later.
      const size_t choices = ready.size() + arriving_.size();
      if (choices == 0) return left == 0;
      const size_t pick = engine_() % choices;
      if (pick < ready.size()) {
        step(ready[pick].first, ready[pick].second);
      } else {
        arrive(pick - ready.size());
      }
    }
  }

 private:
  static constexpr std::byte kPoison{0xff};
  enum State : char { kWaits, kBegun, kDone };
  struct RankState {
    RankState(const attention::AttentionPlan& plan, const attention::Program& of)
        : program(of), leaves(plan, of, {1, &kernels}) {}
    const attention::Program& program;
    const attention::Kernels kernels;
    attention::Leaves leaves;
    std::vector<std::byte*> memory;
    std::vector<Bytes> slots;
    std::vector<State> state;
  };
  struct End {
    size_t rank, instruction;
  };

  static bool may_run(const RankState& rank, const attention::Instruction& one) {
    return std::all_of(one.after.begin(), one.after.end(), [&](int earlier) {
      return rank.state[static_cast<size_t>(earlier)] == kDone;
    });
  }

  void step(size_t r, size_t i) {
    RankState& rank = *ranks_[r];
    const attention::Instruction& one = rank.program.list[i];
    if (one.moves()) {
      rank.state[i] = kBegun;
      const bool send = one.op == attention::Op::kSend;
      const auto from = static_cast<Rank>(send ? r : static_cast<size_t>(one.peer));
      const auto to = static_cast<Rank>(send ? static_cast<size_t>(one.peer) : r);
      auto& [sends, receives] = channels_[{from, to, one.answer}];
      (send ? sends : receives).push_back({r, i});
      const size_t n = (send ? sends : receives).size();
      if ((send ? receives : sends).size() >= n)
        arriving_.push_back({sends[n - 1], receives[n - 1]});
      return;
    }
    rank.state[i] = kDone;
    if (one.op != attention::Op::kFree) return rank.leaves.perform(one, rank.memory);
    const auto slot =
        static_cast<size_t>(rank.program.buffers[static_cast<size_t>(one.message)].slot);
    std::fill(rank.slots[slot].begin(), rank.slots[slot].end(), kPoison);
  }

  void arrive(size_t which) {
    const auto [send, receive] = arriving_[which];
    arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(which));
    RankState &from = *ranks_[send.rank], &to = *ranks_[receive.rank];
    const auto out = static_cast<size_t>(from.program.list[send.instruction].message);
    const auto in = static_cast<size_t>(to.program.list[receive.instruction].message);
    std::copy_n(from.memory[out], from.program.buffers[out].bytes, to.memory[in]);
    from.state[send.instruction] = to.state[receive.instruction] = kDone;
  }

  std::vector<std::unique_ptr<RankState>> ranks_;
  std::map<std::tuple<Rank, Rank, bool>, std::pair<std::vector<End>, std::vector<End>>> channels_;
  std::vector<std::pair<End, End>> arriving_;
  std::mt19937_64 engine_;
};

// (batch, rows, heads) to (batch, heads, rows), or back.
inline Floats swapped(const Floats& from, int64_t batch, int64_t rows, int64_t columns) {
  Floats to(from.size());
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j)
        to[static_cast<size_t>((b * columns + j) * rows + i)] =
            from[static_cast<size_t>((b * rows + i) * columns + j)];
    }
  }
  return to;
}

// The answer to a problem by programs that `run` runs, forward and then backward; empty: it says
// that they stopped.
template <typename Run>
Answer answer_of(const Problem& problem, Run run) {
  using namespace attention;
  const AttentionSpec& spec = problem.spec;
  std::vector<AttentionPlan> plans;
  for (Rank r = 0; r < spec.ranks; ++r) plans.push_back(must(make_plan(spec, r)));
  std::vector<ProgramWorld::Member> members;
  const auto bytes_of = [](const Floats& x) { return narrowed(DType::kFloat32, x); };
  const auto floats_of = [](const Bytes& x) { return widened(DType::kFloat32, x); };
  for (const AttentionPlan& plan : plans) {
    const auto in = [&](const Floats& whole, int64_t heads, bool keys) {
      return narrowed(spec.dtype, shard(spec, plan.rank, whole, heads * spec.head_dim, keys));
    };
    ProgramWorld::Member member{&plan, make_program(plan, false), {}};
    auto& t = member.tensors;
    t[Role::kQ] = in(problem.q, spec.heads, false);
    t[Role::kK] = in(problem.k, spec.kv_heads, true);
    t[Role::kV] = in(problem.v, spec.kv_heads, true);
    t[Role::kDout] = in(problem.dout, spec.heads, false);
    t[Role::kOut] = t[Role::kDq] = Bytes(t[Role::kQ].size());
    t[Role::kDk] = t[Role::kDv] = Bytes(t[Role::kK].size());
    const int64_t rows = spec.batch * plan.group_tokens() * (plan.heads.q_end - plan.heads.q_begin);
    const int64_t keys = spec.batch * plan.group_keys() * (plan.heads.kv_end - plan.heads.kv_begin);
    const auto row = static_cast<size_t>(spec.head_dim) * size_of(spec.dtype);
    t[Role::kLse] = Bytes(static_cast<size_t>(4 * spec.batch * plan.own_tokens() * spec.heads));
    t[Role::kLseLow] = t[Role::kGroupLse] = Bytes(static_cast<size_t>(4 * rows));
    t[Role::kGroupQ] = Bytes(static_cast<size_t>(rows) * row);
    t[Role::kGroupK] = t[Role::kGroupV] = Bytes(static_cast<size_t>(keys) * row);
    members.push_back(std::move(member));
  }
  if (!run(&members)) return {};
  std::vector<RankAnswer> parts(members.size());
  for (size_t r = 0; r < members.size(); ++r) {
    auto& [plan, program, t] = members[r];
    const Floats lse = floats_of(t[Role::kLse]);
    parts[r].lse = swapped(lse, spec.batch, spec.heads, plan->own_tokens());
    Floats dlse = swapped(shard(spec, plan->rank, problem.dlse, spec.heads), spec.batch,
                          plan->own_tokens(), spec.heads);
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(lse[i])) dlse[i] = 0;  // saw no key
    }
    t[Role::kDlse] = bytes_of(dlse);
    program = make_program(*plan, true);
  }
  if (!run(&members)) return {};
  for (size_t r = 0; r < members.size(); ++r) {
    auto& t = members[r].tensors;
    parts[r].out = widened(spec.dtype, t[Role::kOut]);
    parts[r].dq = widened(spec.dtype, t[Role::kDq]);
    parts[r].dk = widened(spec.dtype, t[Role::kDk]);
    parts[r].dv = widened(spec.dtype, t[Role::kDv]);
  }
  return put_together(spec, parts);
}

// By programs in a random order.
inline Answer interpret(const Problem& problem, uint64_t seed) {
  return answer_of(problem, [&](std::vector<ProgramWorld::Member>* members) {
    return ProgramWorld(members, seed++).run();
  });
}

}  // namespace rueda::testing
