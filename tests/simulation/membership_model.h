// MembershipModel: how an elastic job heals, small enough to look at every state.
//
// Members train in epochs; a decider numbers these. A step has one or more batches. A member enters
// the batches of a step, applies the step when all members have entered all of them, and then
// enters the next; what it enters first in a step is the vote about the commit before as well.
//
//   enter      all steps before are applied here        its word: has it seen an announcement
//   apply      all have entered the whole step,          history + 1
//              nobody's word speaks of a change
//   acknowledge all have entered the next step's first   known outside, for good
//              batch: all have applied this one
//   interrupt  as apply, but a word speaks of a change   out of the epoch, with the step before
//   leave      the decider or a lost peer says so        out of the epoch
//   finish     all have entered the vote after the last  the end, with success
//   copy       not a source: from one, aside             has the target, as a whole
//   ask        out of the epoch                          the decider knows how far it is
//   lost       dead or cut off                           the epoch ends, if it was in it
//   form       all members are lost or have asked        a new epoch, recorded before it is told
//   answer     asked, and has not been told of it        in the epoch
//   start      a free slot, no old thread in it          a newcomer, which asks when it is ready
//   kill, cut, take over                                 faults. A lost process' threads may write
//                                                        for a while; who is cut off runs on
//
// A cut member knows what it knew: its peers' words as they were then. Everybody else may see what
// a peer has done at once or, by acting later, late. Who takes over has the record of the last
// decision, and is told again of losses; who waits asks again. Which of equals is rank 0 is open:
// states that differ in members' names alone are one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "tests/simulation/membership_rules.h"

namespace rueda::testing {

enum class HealBug : uint8_t {
  kNone,
  kAcknowledgesAlone,    // a step that is complete here, whoever else has applied it
  kAppliesEarly,         // with the batches of those that are there
  kAppliesEachBatch,     // as it is complete, not the step as a whole
  kNewcomerClaimsState,  // its initial weights
  kCopiesInPlace,        // over its own state, which it says it has
  kSkipsSync,            // a member thinks that it need not copy
  kAnyoneIsRoot,         // any survivor
  kTargetIsLeast,        // of the survivors' commits
  kAnswersBeforeRecord,  // tells members of a decision that who takes over does not know
  kForgetsTraining,      // who takes over thinks that the job has not begun
  kTakesOldStanding,     // of a member that has been told of an epoch since
  kNoFence,              // memory that a lost process' threads write to
  kUsesSlotAtOnce,       // of a lost process whose threads run
  kDoesNotWait,          // for those that are still in the epoch
  kKeepsLossToItself,    // the decider does not say that the epoch has ended, and peers see nothing
};

struct MembershipModel {
  static constexpr int kMost = 3, kSteps = 2, kBatches = 2, kEpochs = 12;
  using Bits = uint8_t;

  enum Life : uint8_t { kNobody, kAbsent, kRuns, kDead, kDone };
  struct Member {
    Life life = kNobody;  // absent: may be started later
    uint8_t side = 0;     // 0: the decider's; else it is cut off, with those of the same number
    uint8_t epoch = 0;    // that it is in or was in last
    bool in = false;      // else it asks for the next
    bool has_state = false;
    uint8_t origin = 0;                                           // 1 + whose initial weights
    std::array<std::array<uint8_t, kBatches>, kSteps> history{};  // the epoch that did it; 0: none
    bool torn = false;                                            // overwritten in part
    bool synced = false;
    uint8_t entered = 0;      // batches, from the beginning of the job; readable when it has left
    bool word = false;        // with the first batch of its newest step
    uint8_t next = 0;         // the step that is to be applied, from 0
    bool writes = false;      // dead, and some thread of it still runs
    uint8_t memory = 0;       // which memory it has mapped
    uint8_t slot = 0;         // by its first member's name
    uint8_t said = 0;         // commits, when it asked
    bool said_state = false;  // and that it holds them
  };
  struct Epoch {
    uint8_t number = 0;
    Bits members = 0;
    Bits sources = 0;
    uint8_t root = 0;
    uint8_t target = 0;
    bool fresh = false;
    uint8_t memory = 0;

    bool operator==(const Epoch&) const = default;
    bool has(int member) const { return (members >> member & 1) != 0; }
  };
  enum Phase : uint8_t { kRunning, kEnding, kOver };

  std::array<Member, kMost> members{};
  std::array<std::array<uint8_t, kMost>, kMost> heard{};  // [cut off][of]: 2 * entered + word
  std::array<Bits, kEpochs> compositions{};  // members of each epoch that somebody may be in
  Epoch now, record;                         // decided; known to who takes over
  Epoch told;                                // the newest that a member was told of
  Phase phase = kRunning;
  Bits asked = 0;        // members of `now` that have left it; newcomers that are ready
  Bits lost = 0;         // known to be
  bool trained = false;  // all were told of some epoch: there may be a state
  std::array<uint8_t, kSteps> acknowledged{};  // the epoch whose step it is
  uint8_t origin = 0;                          // of what is acknowledged
  uint8_t faults = 0;                          // so far
  uint8_t cuts = 0;

  static Bits bit(int member) { return static_cast<Bits>(1 << member); }

  // The same with other names: m becomes to[m].
  MembershipModel renamed(const std::array<int, kMost>& to) const {
    MembershipModel other = *this;
    const auto bits = [&](Bits from) {
      Bits out = 0;
      for (int m = 0; m < kMost; ++m) {
        if ((from >> m & 1) != 0) out |= bit(to[static_cast<size_t>(m)]);
      }
      return out;
    };
    const auto named = [&](uint8_t one) {
      return static_cast<uint8_t>(one == 0 ? 0 : 1 + to[one - 1U]);
    };
    for (size_t m = 0; m < kMost; ++m) {
      const auto mm = static_cast<size_t>(to[m]);
      other.members[mm] = members[m];
      other.members[mm].origin = named(members[m].origin);
      other.members[mm].slot = static_cast<uint8_t>(to[members[m].slot]);
      for (size_t of = 0; of < kMost; ++of)
        other.heard[mm][static_cast<size_t>(to[of])] = heard[m][of];
    }
    for (Bits& composition : other.compositions) composition = bits(composition);
    for (Epoch* epoch : {&other.now, &other.record, &other.told}) {
      epoch->members = bits(epoch->members);
      epoch->sources = bits(epoch->sources);
      if (epoch->number != 0) epoch->root = static_cast<uint8_t>(to[epoch->root]);
    }
    other.asked = bits(asked);
    other.lost = bits(lost);
    other.origin = named(origin);
    return other;
  }
};

}  // namespace rueda::testing
