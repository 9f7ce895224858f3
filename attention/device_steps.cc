#include "attention/device_steps.h"

#include <algorithm>

#include "attention/exchange.h"
#include "attention/wire.h"

namespace rueda::attention {
namespace {

// A tensor whose rows travel in a ring.
struct Travels {
  Role role;
  bool thin;      // a number of each row and head
  int64_t bytes;  // of an element, as it travels
};

class StepMaker {
 public:
  StepMaker(const AttentionPlan& plan, const Program& program)
      : plan_(plan),
        program_(program),
        ring_(program.backward ? plan.backward : plan.forward),
        keys_travel_(ring_.rotate == Rotate::kKeysAndValues) {}

  DeviceStep make(const Instruction& one) const {
    DeviceStep step;
    if (one.stage != Stage::kRing) {
      if (one.op == Op::kPack || one.op == Op::kUnpack) step.message = of_heads(one);
      return step;
    }
    const auto hop = static_cast<size_t>(std::max(one.hop, 0));
    if (one.op == Op::kPack) step.message = of_rows(ring_.sends[hop].rows, rows_out(), false);
    if (one.op == Op::kMerge) step.message = of_rows(ring_.sends[hop].rows, rows_back(), true);
    if (one.op == Op::kAttend) attend(one, &step);
    return step;
  }

 private:
  int64_t element() const { return static_cast<int64_t>(size_of(plan_.spec.dtype)); }
  // Whether distances change scores.
  bool places() const { return !plan_.spec.alibi_slopes.empty(); }
  Role at(Role grouped, Role own) const { return plan_.spec.ulysses > 1 ? grouped : own; }
  Role sums(Role apart, Role result) const { return program_.find(apart) >= 0 ? apart : result; }

  std::vector<Travels> rows_out() const {
    if (keys_travel_) {
      const auto bytes = static_cast<int64_t>(size_of(plan_.spec.kv_wire));
      return {{at(Role::kGroupK, Role::kK), false, bytes},
              {at(Role::kGroupV, Role::kV), false, bytes}};
    }
    if (!program_.backward) return {{at(Role::kGroupQ, Role::kQ), false, element()}};
    return {{at(Role::kGroupLse, Role::kLseRows), true, 4},
            {at(Role::kGroupDelta, Role::kDelta), true, 4},
            {at(Role::kGroupQ, Role::kQ), false, element()},
            {at(Role::kGroupDout, Role::kDout), false, element()}};
  }
  std::vector<Travels> rows_back() const {
    if (keys_travel_) {
      if (!program_.backward) return {};
      return {{sums(Role::kSumDk, at(Role::kGroupDk, Role::kDk)), false, 4},
              {sums(Role::kSumDv, at(Role::kGroupDv, Role::kDv)), false, 4}};
    }
    if (program_.backward) return {{sums(Role::kSumDq, at(Role::kGroupDq, Role::kDq)), false, 4}};
    return {{at(Role::kGroupLse, Role::kLseRows), true, 4},
            {Role::kSumWeights, true, 4},
            {sums(Role::kSumOut, at(Role::kGroupOut, Role::kOut)), false, 4}};
  }

  // Heads of the side that travels, by the number that the rank's tensor gives them.
  std::pair<int64_t, int64_t> heads_in(const RowSet& set) const {
    const HeadShare& share = plan_.heads;
    if (keys_travel_) return {set.head_begin - share.kv_begin, set.head_end - share.kv_begin};
    const auto first = [&](int64_t head) {
      return std::clamp(head * plan_.head_group(), share.q_begin, share.q_end) - share.q_begin;
    };
    return {first(set.head_begin), first(set.head_end)};
  }

  std::vector<MessagePart> of_rows(const std::vector<RowSet>& sets,
                                   const std::vector<Travels>& tensors, bool adds) const {
    const bool scaled =
        !adds && !tensors.empty() && keys_travel_ && plan_.spec.kv_wire == DType::kInt8;
    std::vector<MessagePart> parts;
    int64_t at = 0;
    const auto each = [&](const auto& use) {
      for (const bool thin : {true, false}) {
        for (size_t s = 0; s < sets.size(); ++s) {
          for (const Travels& t : tensors) {
            if (t.thin == thin) use(static_cast<int>(s), t);
          }
        }
      }
    };
    const auto rows_of = [&](int set) {
      const RowSet& in = sets[static_cast<size_t>(set)];
      const auto [begin, end] = heads_in(in);
      return plan_.spec.batch * total(in.rows) * (end - begin);
    };
    if (scaled) each([&](int set, const Travels&) { at += 4 * rows_of(set); });
    int64_t scale_at = 0;
    each([&](int set, const Travels& t) {
      const RowSet& in = sets[static_cast<size_t>(set)];
      const auto [begin, end] = heads_in(in);
      const int64_t bytes = rows_of(set) * (t.thin ? 1 : plan_.spec.head_dim) * t.bytes;
      parts.push_back(
          {t.role, set, begin, end - begin, in.rows, at, bytes, scaled ? scale_at : -1, adds});
      at += bytes;
      if (scaled) scale_at += 4 * rows_of(set);
    });
    return parts;
  }

  std::vector<MessagePart> of_heads(const Instruction& one) const {
    std::vector<MessagePart> parts;
    int64_t at = 0;
    const Rank place = one.peer - plan_.group_begin();
    for (const HeadsPart& p : heads_parts(plan_, program_.backward, one.stage == Stage::kInward,
                                          place, one.op == Op::kPack)) {
      parts.push_back({p.role, -1, p.head, p.heads, {{p.row, p.rows, 1}}, at, p.bytes, -1, p.add});
      at += p.bytes;
    }
    return parts;
  }

  void attend(const Instruction& one, DeviceStep* step) const {
    if (one.hop < 0) {
      const auto tiles = plan_.local_tiles(ring_, one.key);
      step->pieces = pieces_of({tiles.begin(), tiles.end()}, plan_.band, places());
      step->sets.assign(step->pieces.size(), -1);
      return;
    }
    const Hop& hop = ring_.receives[static_cast<size_t>(one.hop)];
    step->message = of_rows(hop.rows, rows_out(), false);
    if (one.reply >= 0) step->reply = of_rows(hop.rows, rows_back(), true);
    step->pieces = pieces_of(in_message(hop.tiles, hop.rows, keys_travel_), plan_.band, places());
    for (const DevicePiece& piece : step->pieces)
      step->sets.push_back(set_of(hop.rows, piece.head_begin));
  }

  const AttentionPlan& plan_;
  const Program& program_;
  const RingPlan& ring_;
  const bool keys_travel_;
};

}  // namespace

DeviceStep device_step(const AttentionPlan& plan, const Program& program, const Instruction& one) {
  return StepMaker(plan, program).make(one);
}

}  // namespace rueda::attention
