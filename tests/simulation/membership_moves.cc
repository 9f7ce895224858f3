#include "tests/simulation/membership_moves.h"

#include <algorithm>
#include <array>

namespace rueda::testing {

namespace {

using Model = MembershipModel;
using Bits = Model::Bits;
using Member = Model::Member;
constexpr int kMost = Model::kMost;

template <typename T>
uint8_t byte(T value) {
  return static_cast<uint8_t>(value);
}

class Moves {
 public:
  Moves(const Model& from, const HealSetup& setup, const std::function<void(const HealMove&)>& move)
      : at_(from), setup_(setup), move_(move) {}

  void all() {
    for (int m = 0; m < kMost; ++m) {
      if (member(m).writes)
        go([&](Model& to) { to.members[static_cast<size_t>(m)].writes = false; });
      if (acts(m)) member_moves(m);
    }
    if (at_.phase != Model::kOver) decider_moves();
    if (at_.faults < setup_.faults && !is_end(at_)) faults();
  }

 private:
  const Member& member(int m) const { return at_.members[static_cast<size_t>(m)]; }
  static Member& member(Model& of, int m) { return of.members[static_cast<size_t>(m)]; }
  bool is(HealBug bug) const { return setup_.bug == bug; }
  static bool has(Bits bits, int m) { return (bits >> m & 1) != 0; }

  bool acts(int m) const {
    return member(m).life == Model::kRuns && (at_.phase != Model::kOver || member(m).side != 0);
  }
  bool sees(int m, int of) const { return member(m).side == member(of).side; }
  bool together(int m, int of) const { return member(m).epoch == member(of).epoch; }
  // Members of m's epoch.
  Bits peers(int m) const { return at_.compositions[member(m).epoch]; }

  // What m knows of another: how many batches it has entered in m's epoch.
  uint8_t word_of(int m, int of) const {
    if (sees(m, of)) return together(m, of) ? byte(2 * member(of).entered + member(of).word) : 0;
    return at_.heard[static_cast<size_t>(m)][static_cast<size_t>(of)];
  }
  bool all_entered(int m, int count) const {
    for (int of = 0; of < kMost; ++of) {
      if (has(peers(m), of) && word_of(m, of) / 2 < count) return false;
    }
    return true;
  }
  int step_of(int entered) const { return (entered - 1) / setup_.batches; }
  // Somebody's word with the first batch of the step that m is in speaks of a change.
  bool change_is_due(int m) const {
    for (int of = 0; of < kMost; ++of) {
      const uint8_t word = word_of(m, of);
      if (has(peers(m), of) && word % 2 == 1 && step_of(word / 2) == step_of(member(m).entered))
        return true;
    }
    return false;
  }

  template <typename Change>
  void go(const Change& change, const char* broken = "", bool is_fault = false) {
    HealMove move{at_, broken, is_fault};
    change(move.to);
    const char* wrong = Moves(move.to, setup_, move_).acknowledge(move.to);
    if (*move.broken == 0) move.broken = wrong;
    move_(move);
  }

  // ---- a member

  void member_moves(int m) {
    const Member& it = member(m);
    if (!it.in) return;
    if (!it.synced) copy(m);
    if (it.synced) train(m);
    if (it.side == 0 && must_leave(m)) go([&](Model& to) { member(to, m).in = false; });
  }

  void copy(int m) {
    const Model::Epoch& epoch = at_.now;
    if (member(m).epoch != epoch.number) return;  // its epoch is over
    for (int from = 0; from < kMost; ++from) {
      const Member& source = member(from);
      if (epoch.fresh ? epoch.root != from : !has(epoch.sources, from)) continue;
      if (source.life != Model::kRuns || !source.in || !source.synced || !together(m, from) ||
          !sees(m, from))
        continue;
      if (is(HealBug::kCopiesInPlace) && !member(m).torn)
        return go([&](Model& to) { member(to, m).torn = member(to, m).has_state = true; });
      return go([&](Model& to) {
        Member& it = member(to, m);
        synced(to, m);
        it.origin = source.origin;
        it.history = source.history;
        for (size_t step = epoch.target; step < Model::kSteps; ++step) it.history[step] = {};
      });
    }
  }

  // It has the target of the newest epoch.
  void synced(Model& to, int m) const {
    Member& it = member(to, m);
    it.synced = it.has_state = true;
    it.torn = false;
    it.next = to.now.target;
    it.entered = byte(to.now.target * setup_.batches);
  }

  void train(int m) {
    const Member& it = member(m);
    const int count = it.entered;
    const int step = count == 0 ? 0 : step_of(count);
    const bool last = step == setup_.steps;
    const int first = step * setup_.batches + 1;  // entered once this step has begun
    const bool begun = count >= first;
    const bool due = begun && all_entered(m, first) && change_is_due(m);
    // Enter the next batch.
    const int next_step = count / setup_.batches;
    if (next_step <= it.next && next_step <= setup_.steps && !(begun && last) && !due) {
      const bool is_first = count % setup_.batches == 0;
      for (const bool word : {false, true}) {
        if (word && !(is_first && announced())) continue;
        go([&](Model& to) {
          ++member(to, m).entered;
          if (is_first) member(to, m).word = word;
        });
      }
    }
    if (!begun) return;
    if (due) return go([&](Model& to) { member(to, m).in = false; });
    if (last && all_entered(m, first))
      return go([&](Model& to) {
        member(to, m).life = Model::kDone;
        forget(to, m);
      });
    if (!last && it.next == step) apply(m, step);
  }

  void apply(int m, int step) {
    const Member& it = member(m);
    int ready = 0;
    while (ready < setup_.batches && all_entered(m, step * setup_.batches + ready + 1)) ++ready;
    int from = 0;
    const auto& done = it.history[static_cast<size_t>(step)];
    const bool each = is(HealBug::kAppliesEachBatch);
    if (each) {
      while (from < setup_.batches && done[static_cast<size_t>(from)] == it.epoch) ++from;
    }
    const bool early = is(HealBug::kAppliesEarly) && it.entered == (step + 1) * setup_.batches;
    const int to_apply = early ? setup_.batches : ready;
    if (each ? to_apply <= from : to_apply < setup_.batches) return;
    const bool twice = done[static_cast<size_t>(from)] != 0;
    const char* broken = "";
    if (twice) broken = "a step is applied twice";
    if (ready < to_apply) broken = "a step is applied without the part of a rank";
    go(
        [&](Model& to) {
          for (int batch = from; batch < to_apply; ++batch)
            member(to, m).history[static_cast<size_t>(step)][static_cast<size_t>(batch)] = it.epoch;
          if (to_apply == setup_.batches) ++member(to, m).next;
        },
        broken);
  }

  // The step before the one that it is in. At once: who acknowledges later is only seen later.
  const char* acknowledge(Model& to) const {
    const char* broken = "";
    for (int m = 0; m < kMost; ++m) {
      const Member& it = member(m);
      if (it.life != Model::kRuns || !it.in || !it.synced) continue;
      const bool alone = is(HealBug::kAcknowledgesAlone);
      const int step = alone ? it.next : step_of(it.entered);
      const int what = step - 1;
      if (what < 0 || it.next <= what) continue;
      if (!alone && !all_entered(m, step * setup_.batches + 1)) continue;
      const uint8_t epoch = it.history[static_cast<size_t>(what)][0];
      uint8_t& before = to.acknowledged[static_cast<size_t>(what)];
      if (before == epoch && to.origin == it.origin) continue;
      if (before != 0 || (to.origin != 0 && to.origin != it.origin))
        broken = "two histories are acknowledged";
      // Its epoch is over, and the newest does not have the step.
      if (it.epoch < at_.now.number && (at_.now.target <= what || at_.now.fresh))
        broken = "an acknowledged commit is lost";
      before = epoch;
      to.origin = it.origin;
    }
    return broken;
  }

  // The decider says so, or something has happened to a peer.
  bool must_leave(int m) const {
    const Member& it = member(m);
    const bool over = at_.now.number > it.epoch || at_.phase == Model::kEnding;
    if (over && !is(HealBug::kKeepsLossToItself)) return true;
    for (int of = 0; of < kMost; ++of) {
      if (!has(peers(m), of) || of == m || is(HealBug::kKeepsLossToItself)) continue;
      const Member& peer = member(of);
      if (peer.life == Model::kDead || !sees(m, of) || peer.epoch > it.epoch) return true;
      if (peer.life == Model::kRuns && peer.epoch == it.epoch && !peer.in) return true;
    }
    return false;
  }

  // ---- the decider

  bool awaited(int m) const {
    return at_.now.has(m) && !has(at_.lost, m) && !has(at_.asked, m) &&
           member(m).life != Model::kDone;
  }
  bool finishing() const {
    for (int m = 0; m < kMost; ++m) {
      if (member(m).life == Model::kDone && member(m).side == 0) return true;
    }
    return false;
  }
  // A newcomer is ready: told to members when they next enter a step.
  bool announced() const { return (at_.asked & ~at_.now.members & ~at_.lost) != 0 && !finishing(); }

  void decider_moves() {
    if (at_.record != at_.now) go([](Model& to) { to.record = to.now; });
    for (int m = 0; m < kMost; ++m) {
      const Member& it = member(m);
      const bool gone = it.life == Model::kDead || (it.life >= Model::kRuns && it.side != 0);
      if (gone && !has(at_.lost, m)) report(m);
      if (it.life == Model::kRuns && it.side == 0 && !it.in && !has(at_.lost, m)) hear(m);
      if (it.life == Model::kAbsent && !finishing()) start(m);
    }
    if (at_.phase == Model::kEnding) form();
  }

  void report(int m) {
    go([&](Model& to) {
      to.lost |= Model::bit(m);
      to.asked &= byte(~Model::bit(m));
      member(to, m).said = 0;
      member(to, m).said_state = false;
      if (member(m).life == Model::kDead) forget(to, m);
      if (!to.now.has(m)) return;
      to.phase = finishing() ? Model::kOver : Model::kEnding;
    });
  }

  // It asks to enter.
  void hear(int m) {
    const Member& it = member(m);
    const bool told = it.epoch == at_.now.number;
    if (at_.now.has(m) && !told) answer(m);
    const bool old = is(HealBug::kTakesOldStanding) && at_.phase == Model::kEnding;
    if (has(at_.asked, m) || (at_.now.has(m) && !told && !old)) return;
    go([&](Model& to) {
      to.asked |= Model::bit(m);
      member(to, m).said = byte(commits(m));
      member(to, m).said_state = claims(m);
      if (to.now.has(m)) to.phase = Model::kEnding;
    });
  }

  void answer(int m) {
    if (at_.record != at_.now && !is(HealBug::kAnswersBeforeRecord)) return;
    const bool again = at_.told.number == at_.now.number && !(at_.told == at_.now);
    const bool back = at_.now.number < at_.told.number;
    go(
        [&](Model& to) {
          Member& it = member(to, m);
          it.epoch = to.now.number;
          it.in = true;
          it.synced = false;
          it.entered = 0;
          it.word = false;
          it.memory = to.now.memory;
          if (to.now.fresh) {
            it.has_state = it.torn = false;
            it.history = {};
            it.origin = byte(m + 1);
          }
          const bool holds = to.now.fresh ? to.now.root == m : has(to.now.sources, m);
          if (holds || (is(HealBug::kSkipsSync) && it.has_state)) synced(to, m);
          to.told = to.now;
          bool all = true;
          for (int of = 0; of < kMost; ++of)
            all &= !to.now.has(of) || member(to, of).epoch == to.now.number;
          to.trained |= all;
        },
        again || back ? "two epochs have one number" : "");
  }

  void start(int m) {
    for (int slot = 0; slot < kMost; ++slot) {
      bool exists = setup_.free_slot && slot == m, taken = false, writes = false;
      for (int of = 0; of < kMost; ++of) {
        const Member& other = member(of);
        if (other.life < Model::kRuns || other.slot != slot) continue;
        exists = true;
        writes |= other.writes;
        const bool known = other.life == Model::kDead && has(at_.lost, of) && other.side == 0;
        taken |= !known || (other.writes && !is(HealBug::kUsesSlotAtOnce));
      }
      if (!exists || taken) continue;
      go(
          [&](Model& to) {
            Member& it = member(to, m);
            it.life = Model::kRuns;
            it.slot = byte(slot);
            it.origin = byte(m + 1);
          },
          writes ? "a slot is used while its old threads run" : "");
    }
  }

  // What a member holds; what it says of it.
  int commits(int m) const {
    int count = 0;
    while (count < setup_.steps && whole(m, count)) ++count;
    return count;
  }
  bool whole(int m, int step) const {
    const auto& done = member(m).history[static_cast<size_t>(step)];
    for (int batch = 0; batch < setup_.batches; ++batch) {
      if (done[static_cast<size_t>(batch)] == 0) return false;
    }
    return true;
  }
  bool has_verified(int m) const {
    const int steps = commits(m);
    const bool part = steps < setup_.steps && member(m).history[static_cast<size_t>(steps)][0] != 0;
    return member(m).has_state && !member(m).torn && !part;
  }
  bool claims(int m) const {
    return member(m).has_state ||
           (is(HealBug::kNewcomerClaimsState) && member(m).epoch == 0 && at_.now.number > 0);
  }

  void form() {
    Bits chosen = 0;
    for (int m = 0; m < kMost; ++m) {
      if (awaited(m) && !is(HealBug::kDoesNotWait)) return;
      if (has(at_.asked, m) && !has(at_.lost, m) && (at_.now.has(m) || !finishing()))
        chosen |= Model::bit(m);
    }
    const Bits survivors = chosen & at_.now.members;
    const auto end = [&] { go([](Model& to) { to.phase = Model::kOver; }); };
    if (chosen == 0) {
      for (int m = 0; m < kMost; ++m) {
        if (awaited(m)) return;
        const bool comes = member(m).life == Model::kRuns && member(m).side == 0 &&
                           !at_.now.has(m) && !has(at_.lost, m) && !finishing();
        if (comes) return;
      }
      return end();
    }
    Model::Epoch next;
    next.number = byte(at_.now.number + 1);
    next.members = chosen;
    int target = -1;
    for (int m = 0; m < kMost; ++m) {
      if (!has(survivors, m) || !member(m).said_state) continue;
      const int said = member(m).said;
      const bool least = is(HealBug::kTargetIsLeast);
      if (target < 0 || (least ? said < target : said > target)) target = said;
    }
    if (is(HealBug::kNewcomerClaimsState)) {
      for (int m = 0; m < kMost; ++m) {
        if (has(chosen, m) && member(m).said_state) target = std::max<int>(target, member(m).said);
      }
    }
    next.fresh = target < 0;
    if (next.fresh && (at_.now.target > 0 || (at_.trained && survivors == 0))) return end();
    next.target = byte(std::max(target, 0));
    for (int m = 0; m < kMost; ++m) {
      const bool says = has(chosen, m) && member(m).said_state && !next.fresh &&
                        (has(survivors, m) || is(HealBug::kNewcomerClaimsState));
      if (says && (member(m).said == target || is(HealBug::kTargetIsLeast)))
        next.sources |= Model::bit(m);
    }
    bool writes = false;
    for (int m = 0; m < kMost; ++m)
      writes |= has(at_.lost, m) && member(m).writes && member(m).memory == at_.now.memory;
    next.memory = byte(at_.now.memory + (writes && !is(HealBug::kNoFence) ? 1 : 0));
    Bits roots = next.fresh ? (survivors != 0 ? survivors : chosen) : next.sources;
    if (is(HealBug::kAnyoneIsRoot)) roots = survivors != 0 ? survivors : chosen;
    for (int root = 0; root < kMost; ++root) {
      if (!has(roots, root)) continue;
      next.root = byte(root);
      const char* broken = broken_decision(next);
      go([&](Model& to) { decide(to, next); }, broken);
    }
  }

  // By the rules that hold for the real decider too.
  const char* broken_decision(const Model::Epoch& next) const {
    DecidedEpoch words;
    words.last_number = at_.now.number;
    words.number = next.number;
    words.target = next.target;
    for (const uint8_t step : at_.acknowledged) words.acknowledged += step != 0 ? 1 : 0;
    words.fresh = next.fresh;
    words.fresh_memory = next.memory != at_.now.memory;
    std::array<int, kMost> order{};
    size_t size = 0;
    order[size++] = next.root;
    for (int m = 0; m < kMost; ++m) {
      words.others_write |=
          member(m).writes && member(m).memory == at_.now.memory && has(at_.lost, m);
      const Member& it = member(m);
      words.awaits_somebody |=
          it.life == Model::kRuns && it.side == 0 && at_.now.has(m) && !has(at_.lost, m) && it.in;
      if (has(next.members, m) && m != next.root) order[size++] = m;
    }
    return broken_rule(words, size, [&](size_t rank) {
      const int m = order[rank];
      return DecidedMember{at_.now.has(m), has(next.sources, m), has_verified(m),
                           static_cast<uint64_t>(commits(m))};
    });
  }

  void decide(Model& to, const Model::Epoch& next) const {
    for (int m = 0; m < kMost; ++m) {
      Member& it = member(to, m);
      it.said = 0;
      it.said_state = false;
      if (!has(at_.lost, m) || it.side != 0) continue;
      // Nobody reads any more what it has said.
      const Member was = it;
      it = Member{};
      it.life = was.life;
      it.writes = was.writes;
      it.memory = was.memory;
      it.slot = was.slot;
    }
    for (uint8_t number = 1; number < Model::kEpochs; ++number) {
      bool used = number == at_.now.number;  // who takes over may need it
      for (const Member& it : to.members) used |= it.life >= Model::kRuns && it.epoch == number;
      if (!used) to.compositions[number] = 0;
    }
    to.now = next;
    to.compositions[next.number] = next.members;
    if (!is(HealBug::kAnswersBeforeRecord)) to.record = next;
    to.phase = Model::kRunning;
    to.asked &= byte(~next.members);
  }

  // ---- faults

  void faults() {
    const auto fault = [&](const auto& change) {
      go(
          [&](Model& to) {
            ++to.faults;
            change(to);
          },
          "", true);
    };
    if (setup_.take_overs && at_.phase != Model::kOver) fault([&](Model& to) { take_over(to); });
    for (int m = 0; m < kMost; ++m) {
      if (member(m).life != Model::kRuns) continue;
      if (setup_.kills) {
        for (const bool writes : {false, true}) {
          if (writes && member(m).epoch == 0) continue;  // it has mapped nothing
          fault([&](Model& to) {
            Member& it = member(to, m);
            it.life = Model::kDead;
            it.writes = writes;
            if (!has(to.asked, m)) forget(to, m);
          });
        }
      }
      if (!setup_.cuts || member(m).side != 0) continue;
      fault([&](Model& to) { cut(to, Model::bit(m)); });
      for (int other = 0; other < m; ++other) {  // a host with two
        if (member(other).life == Model::kRuns && member(other).side == 0)
          fault([&](Model& to) { cut(to, byte(Model::bit(m) | Model::bit(other))); });
      }
    }
  }

  // What nobody reads any more. Its words stay readable.
  static void forget(Model& to, int m) {
    Member& it = member(to, m);
    it.has_state = it.torn = it.synced = it.in = false;
    it.history = {};
    it.origin = it.next = 0;
  }

  void cut(Model& to, Bits who) const {
    ++to.cuts;
    for (int m = 0; m < kMost; ++m) {
      for (int of = 0; of < kMost; ++of) {
        if (has(who, m) == has(who, of) || !sees(m, of)) continue;
        to.heard[static_cast<size_t>(m)][static_cast<size_t>(of)] =
            together(m, of) ? word_of(m, of) : byte(0);
      }
    }
    for (int m = 0; m < kMost; ++m) {
      if (has(who, m)) member(to, m).side = to.cuts;
    }
  }

  // From the record. Who waits asks again, losses are reported again.
  void take_over(Model& to) const {
    to.now = to.record;
    to.phase = Model::kRunning;
    to.asked = 0;
    for (Member& it : to.members) it.said = 0, it.said_state = false;
    to.lost &= byte(~to.now.members);
    to.trained = !is(HealBug::kForgetsTraining);
    to.compositions[to.now.number] = to.now.members;
  }

  const Model& at_;
  const HealSetup& setup_;
  const std::function<void(const HealMove&)>& move_;
};

}  // namespace

MembershipModel first_state(const HealSetup& setup) {
  MembershipModel model;
  model.now.number = 1;
  model.now.members = byte((1 << setup.ranks) - 1);
  model.now.fresh = true;
  model.record = model.now;
  model.compositions[1] = model.now.members;
  for (int m = 0; m < setup.ranks; ++m) {
    Member& it = model.members[static_cast<size_t>(m)];
    it.life = Model::kRuns;
    it.origin = byte(m + 1);
    it.slot = byte(m);
  }
  for (int m = 0; m < kMost; ++m) model.members[static_cast<size_t>(m)].slot = byte(m);
  for (int m = setup.ranks; m < setup.ranks + setup.newcomers; ++m)
    model.members[static_cast<size_t>(m)].life = Model::kAbsent;
  return model;
}

void each_move(const MembershipModel& from, const HealSetup& setup,
               const std::function<void(const HealMove&)>& move) {
  Moves(from, setup, move).all();
}

bool is_end(const MembershipModel& at) {
  if (at.phase == Model::kOver) return true;
  for (int m = 0; m < kMost; ++m) {
    const Member& it = at.members[static_cast<size_t>(m)];
    if (at.now.has(m) && (it.life != Model::kDone || it.side != 0)) return false;
  }
  return true;
}

}  // namespace rueda::testing
