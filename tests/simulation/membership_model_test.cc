// Every interleaving of a small elastic job: breadth first over all states of membership_model.h,
// of which one stands for those that differ in the members' names alone.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/simulation/explored.h"
#include "tests/simulation/membership_moves.h"

namespace rueda::testing {
namespace {

using Model = MembershipModel;
static_assert(std::has_unique_object_representations_v<Model>);

std::string_view bytes(const Model& model) {
  return {reinterpret_cast<const char*>(&model), sizeof(model)};
}

// States by number, each once.
class States {
 public:
  // Its number, and whether it is new.
  std::pair<uint32_t, bool> add(const Model& model) {
    if (2 * states_.size() >= slots_.size()) grow();
    uint32_t& slot = find(model);
    if (slot != kFree) return {slot, false};
    slot = static_cast<uint32_t>(states_.size());
    states_.push_back(model);
    return {slot, true};
  }
  const Model& operator[](uint32_t number) const { return states_[number]; }
  size_t size() const { return states_.size(); }

 private:
  static constexpr uint32_t kFree = ~0U;

  uint32_t& find(const Model& model) {
    size_t at = std::hash<std::string_view>()(bytes(model)) & (slots_.size() - 1);
    while (slots_[at] != kFree && bytes(states_[slots_[at]]) != bytes(model))
      at = (at + 1) & (slots_.size() - 1);
    return slots_[at];
  }
  void grow() {
    slots_.assign(std::max<size_t>(1024, 2 * slots_.size()), kFree);
    for (uint32_t number = 0; number < states_.size(); ++number) find(states_[number]) = number;
  }

  std::vector<Model> states_;
  std::vector<uint32_t> slots_;
};

class Explorer {
 public:
  explicit Explorer(const HealSetup& setup) : setup_(setup) {}

  Explored explore() {
    Explored result;
    reach(first_state(setup_));
    std::vector<uint32_t> from, to;  // moves that are no faults
    std::vector<bool> ends;
    for (uint32_t number = 0; number < states_.size() && result.broken.empty(); ++number) {
      const Model at = states_[number];
      bool moved = false;
      each_move(at, setup_, [&](const HealMove& move) {
        if (result.broken.empty()) result.broken = move.broken;
        const uint32_t next = reach(move.to);
        if (move.is_fault || next == number) return;
        moved = true;
        from.push_back(number);
        to.push_back(next);
      });
      ends.push_back(is_end(at));
      result.ends += ends.back() ? 1 : 0;
      if (!moved && !ends.back() && result.broken.empty()) result.broken = "everybody waits";
    }
    result.states = states_.size();
    if (result.broken.empty() && !all_come_to(ends, from, to))
      result.broken = "the job goes round in circles";
    return result;
  }

 private:
  uint32_t reach(const Model& model) {
    Model first = model;
    std::array<int, Model::kMost> names = {0, 1, 2};
    while (std::next_permutation(names.begin(), names.end())) {
      const Model same = model.renamed(names);
      if (bytes(same) < bytes(first)) first = same;
    }
    return states_.add(first).first;
  }

  // From each state one of `ends` can be reached without a fault.
  static bool all_come_to(std::vector<bool> ends, const std::vector<uint32_t>& from,
                          const std::vector<uint32_t>& to) {
    bool changed = true;
    while (changed) {
      changed = false;
      for (size_t i = from.size(); i-- > 0;) {
        if (!ends[to[i]] || ends[from[i]]) continue;
        ends[from[i]] = changed = true;
      }
    }
    return std::find(ends.begin(), ends.end(), false) == ends.end();
  }

  const HealSetup setup_;
  States states_;
};

Explored explore(const HealSetup& setup) { return Explorer(setup).explore(); }

void check_all(const char* what, HealSetup setup, size_t least) {
  if (std::getenv("RUEDA_TEST_SHORT") != nullptr) setup.faults = 1, least = 0;
  const Explored all = explore(setup);
  std::cout << what << ": " << all.states << " states, " << all.ends << " ends\n";
  INFO(what);
  CHECK(all.broken == "");
  CHECK(all.ends > 0);
  CHECK(all.states > least);  // it has looked at something
}

TEST_CASE("no two faults lose, tear or double a step of three ranks", "[healing]") {
  check_all("3 ranks, 2 steps, 2 faults", {.ranks = 3}, 100'000);
}

TEST_CASE("nor of two ranks and a newcomer", "[healing]") {
  check_all("2 ranks, a newcomer, 1 step, 2 faults",
            {.ranks = 2, .newcomers = 1, .free_slot = true, .steps = 1}, 100'000);
  check_all("2 ranks, a newcomer in a lost one's slot, 2 steps, 2 faults",
            {.ranks = 2, .newcomers = 1}, 50'000);
}

TEST_CASE("nor of steps that have several batches", "[healing]") {
  check_all("2 ranks, 2 steps of 2 batches, 2 faults", {.ranks = 2, .batches = 2}, 1000);
}

TEST_CASE("nor does any of more states", "[.][everything]") {
  check_all("2 ranks, a newcomer, 2 steps, 2 faults",
            {.ranks = 2, .newcomers = 1, .free_slot = true}, 1'000'000);
  check_all("a rank, two newcomers, a step, 2 faults",
            {.ranks = 1, .newcomers = 2, .free_slot = true, .steps = 1}, 10'000);
  check_all("3 ranks, a step of 2 batches, 2 faults", {.ranks = 3, .steps = 1, .batches = 2},
            100'000);
  check_all("3 ranks, 2 steps of 2 batches, 2 faults", {.ranks = 3, .batches = 2}, 1'000'000);
  check_all("2 ranks, 2 steps, 4 faults", {.ranks = 2, .faults = 4}, 1000);
  check_all("3 ranks, 1 step, 3 faults", {.ranks = 3, .steps = 1, .faults = 3}, 100'000);
}

TEST_CASE("each rule of healing is there for a reason", "[healing]") {
  const auto found = [](HealSetup setup, HealBug bug) {
    setup.bug = bug;
    return explore(setup).broken;
  };
  const HealSetup two = {.ranks = 2, .faults = 1};
  const HealSetup three = {.ranks = 3, .steps = 1};
  const HealSetup joins = {.ranks = 2, .newcomers = 1, .steps = 1, .faults = 1};
  const HealSetup batches = {.ranks = 2, .steps = 1, .batches = 2, .faults = 1};
  const HealSetup replaced = {.ranks = 1, .newcomers = 1, .steps = 2};
  for (const HealSetup& setup : {two, three, joins, batches, replaced})
    REQUIRE(explore(setup).broken == "");

  CHECK(found(two, HealBug::kAcknowledgesAlone) == "an acknowledged commit is lost");
  CHECK(found(two, HealBug::kAppliesEarly) == "a step is applied without the part of a rank");
  CHECK(found(batches, HealBug::kAppliesEachBatch) == "a source has no verified state");
  CHECK(found(joins, HealBug::kNewcomerClaimsState) == "a source has no verified state");
  CHECK(found(joins, HealBug::kCopiesInPlace) == "a source has no verified state");
  CHECK(found(three, HealBug::kSkipsSync) == "two histories are acknowledged");
  CHECK(found(three, HealBug::kAnyoneIsRoot) == "rank 0 has not the newest commit");
  CHECK(found(three, HealBug::kTargetIsLeast) == "a source does not hold the target");
  CHECK(found(three, HealBug::kAnswersBeforeRecord) == "two epochs have one number");
  CHECK(found(replaced, HealBug::kForgetsTraining) == "an acknowledged commit is lost");
  CHECK(found(three, HealBug::kTakesOldStanding) ==
        "an epoch began while a member trained in the one before");
  CHECK(found(two, HealBug::kNoFence) == "a lost rank may write into memory that is in use");
  CHECK(found(joins, HealBug::kUsesSlotAtOnce) == "a slot is used while its old threads run");
  CHECK(found(three, HealBug::kDoesNotWait) ==
        "an epoch began while a member trained in the one before");
  CHECK(found(two, HealBug::kKeepsLossToItself) == "everybody waits");
}

}  // namespace
}  // namespace rueda::testing
