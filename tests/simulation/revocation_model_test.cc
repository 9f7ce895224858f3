// Every interleaving of a small revocation: breadth first over all states, of which one stands for
// those that differ in the ranks' numbers alone.
#include "tests/simulation/revocation_model.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "tests/simulation/explored.h"

namespace rueda::testing {
namespace {

constexpr int kMaxRanks = 3;
using Model = RevocationModel<kMaxRanks, int8_t>;

struct HashOfBytes {
  static_assert(std::has_unique_object_representations_v<Model>);
  static std::string_view bytes(const Model& model) {
    return {reinterpret_cast<const char*>(&model), sizeof(model)};
  }
  size_t operator()(const Model& model) const {
    return std::hash<std::string_view>()(bytes(model));
  }
  bool operator()(const Model& a, const Model& b) const { return bytes(a) == bytes(b); }
};

enum class Group {
  kInMemory,      // a peer's word says what it has entered and that it has revoked
  kBetweenHosts,  // data and last words come in any order
  kInOneStream,   // a last word comes behind the data that was sent before
};

struct Setup {
  Group group = Group::kInMemory;
  int size = 1;
  int batches = 1;           // that each rank enters if nobody revokes
  bool revocations = false;  // a rank may revoke of its own
  int crashes = 0;
  int cuts = 0;
  int late = 0;  // data of the generation before that may be under way, from each rank to each
  Bug bug = Bug::kNone;
};

class Explorer {
 public:
  explicit Explorer(const Setup& setup) : setup_(setup) {}

  Explored explore() {
    start();
    while (!next_.empty() && result_.broken.empty()) {
      std::vector<const Model*> here;
      here.swap(next_);
      for (const Model* model : here) {
        if (result_.broken.empty()) look_at(*model);
      }
    }
    result_.states = known_.size();
    return result_;
  }

 private:
  // Each pair has late data under way or not.
  void start() {
    Model model;
    model.size = static_cast<int8_t>(setup_.size);
    const int pairs = setup_.size * setup_.size;
    for (int choice = 0; choice < (setup_.late > 0 ? 1 << pairs : 1); ++choice) {
      for (int pair = 0; pair < pairs; ++pair) {
        const int to = pair / setup_.size;
        const int from = pair % setup_.size;
        const bool is_late = (choice >> pair & 1) != 0 && to != from;
        model.late[to][from] = static_cast<int8_t>(is_late ? setup_.late : 0);
      }
      reach(model);
    }
  }

  void look_at(const Model& at) {
    result_.broken = at.broken();
    moved_ = false;
    for (int rank = 0; rank < setup_.size; ++rank) {
      if (at.lives(rank)) act(at, rank);
    }
    if (!moved_) {  // a fault is nobody's duty: what waits for one waits for ever
      ++result_.ends;
      if (result_.broken.empty()) result_.broken = at.wrong_end();
    }
    faults(at);
  }

  void act(const Model& at, int rank) {
    const Bug bug = setup_.bug;
    bool someone_revoked = false;
    for (int of = 0; of < setup_.size; ++of) {
      if (of != rank) listen(at, rank, of);
      someone_revoked |= at.told[rank][of] != Model::kNot;
    }
    if (at.may_enter(rank) && at.words[rank].entered < setup_.batches)
      go(at, [&](Model* to) { to->enter(rank); });
    if (at.may_revoke(rank) && (setup_.revocations || someone_revoked))
      go(at, [&](Model* to) { to->revoke(rank); });
    if (at.may_run(rank, bug)) go(at, [&](Model* to) { to->run(rank); });
    if (at.may_withdraw(rank, bug))
      go(at, [&](Model* to) { to->withdraw(rank, at.first_lost(rank, bug)); });
    if (at.may_give_up(rank, bug)) go(at, [&](Model* to) { to->gave_up[rank] = true; });
  }

  // What comes from a peer. What a crashed one has said may come still, or not.
  void listen(const Model& at, int rank, int of) {
    if (at.cut[rank][of]) return;
    const Model::Word& word = at.words[of];
    const bool news = at.heard[rank][of] < word.entered;
    const bool last = word.revoked && at.told[rank][of] == Model::kNot;
    if (setup_.group == Group::kInMemory) {
      if (!news && !last) return;
      return go(at, [&](Model* to) {
        to->hear(rank, of, word.entered);
        if (last) to->hear_last(rank, of, word.entered);
      });
    }
    const bool late = at.late[rank][of] > 0;
    if (late) go(at, [&](Model* to) { to->hear_late(rank, of, setup_.bug); });
    if (news && !late)
      go(at, [&](Model* to) { to->hear(rank, of, static_cast<int8_t>(at.heard[rank][of] + 1)); });
    const bool behind = setup_.group == Group::kInOneStream && (news || late);
    const bool forgotten = setup_.bug == Bug::kForgetsOneMember && rank == (of + 1) % setup_.size;
    if (last && !behind && !forgotten)
      go(at, [&](Model* to) { to->hear_last(rank, of, word.entered); });
  }

  void faults(const Model& at) {
    int crashes = 0;
    int cuts = 0;
    for (int rank = 0; rank < setup_.size; ++rank) {
      crashes += at.crashed[rank];
      for (int other = 0; other < rank; ++other) cuts += at.cut[rank][other];
    }
    for (int rank = 0; rank < setup_.size; ++rank) {
      if (crashes < setup_.crashes && at.lives(rank))
        go(at, [&](Model* to) { to->crashed[rank] = true; });
      for (int other = 0; other < rank && cuts < setup_.cuts; ++other) {
        if (!at.cut[rank][other])
          go(at, [&](Model* to) { to->cut[rank][other] = to->cut[other][rank] = true; });
      }
    }
  }

  template <typename Change>
  void go(const Model& from, const Change& change) {
    Model to = from;
    change(&to);
    moved_ = true;
    reach(to);
  }
  void reach(const Model& model) {
    Model first = model;
    std::array<int, kMaxRanks> numbers = {0, 1, 2};
    while (std::next_permutation(numbers.begin(), numbers.begin() + setup_.size)) {
      const Model same = model.renamed(numbers);
      if (HashOfBytes::bytes(same) < HashOfBytes::bytes(first)) first = same;
    }
    const auto [it, is_new] = known_.insert(first);
    if (is_new) next_.push_back(&*it);
  }

  const Setup setup_;
  std::unordered_set<Model, HashOfBytes, HashOfBytes> known_;
  std::vector<const Model*> next_;
  bool moved_ = false;
  Explored result_;
};

Explored explore(const Setup& setup) { return Explorer(setup).explore(); }

TEST_CASE("no interleaving of two batches on up to three ranks breaks the protocol", "[model]") {
  for (const int size : {1, 2, 3}) {
    for (const bool revocations : {false, true}) {
      const Explored all = explore(
          {.size = size, .batches = 2, .revocations = revocations, .crashes = size > 1 ? 1 : 0});
      INFO("ranks " << size << " revocations " << revocations);
      CHECK(all.broken == "");
      CHECK(all.ends > 0);
      if (size == 3 && revocations) CHECK(all.states > 10'000);  // it has looked at something
    }
  }
}

TEST_CASE("nor between hosts", "[model]") {
  const Group group = GENERATE(Group::kBetweenHosts, Group::kInOneStream);
  for (const int size : {2, 3}) {
    for (const bool revocations : {false, true}) {
      const Explored all =
          explore({.group = group, .size = size, .batches = 2, .revocations = revocations});
      INFO("ranks " << size << " revocations " << revocations);
      CHECK(all.broken == "");
      CHECK(all.ends > 0);
      if (size == 3 && revocations) CHECK(all.states > 10'000);
    }
  }
}

TEST_CASE("nor with a crash, a cut or late data of the generation before", "[model]") {
  const Group group = GENERATE(Group::kBetweenHosts, Group::kInOneStream);
  for (const int size : {2, 3}) {
    const Setup calm = {
        .group = group, .size = size, .batches = size == 2 ? 2 : 1, .revocations = true};
    Setup crash = calm, cut = calm, late = calm;
    crash.crashes = 1;
    cut.cuts = 1;
    late.late = size == 2 ? 2 : 1;
    for (const Setup& setup : {crash, cut, late}) {
      const Explored all = explore(setup);
      INFO("ranks " << size << " crashes " << setup.crashes << " cuts " << setup.cuts);
      CHECK(all.broken == "");
      CHECK(all.ends > 0);
      if (size == 3) CHECK(all.states > 10'000);
    }
  }
}

TEST_CASE("the model finds planted mistakes", "[model]") {
  const auto found = [](Setup setup, Bug bug) {
    REQUIRE(explore(setup).broken == "");
    setup.bug = bug;
    return explore(setup).broken;
  };
  const Setup small = {.size = 2, .revocations = true};
  CHECK(found({.size = 2, .batches = 2, .revocations = true}, Bug::kMostInsteadOfLeast) != "");
  CHECK(found({.size = 2}, Bug::kRunBeforeAllHaveEntered) != "");
  CHECK(found(small, Bug::kBackBeforeItsBatchesEnded) != "");

  Setup hosts = small;
  hosts.group = Group::kBetweenHosts;
  CHECK(found(hosts, Bug::kForgetsOneMember) != "");
  CHECK(found(hosts, Bug::kRunOnLastWordAlone) == "a batch ran without the data of a rank");
  Setup late = hosts;
  late.late = 1;
  CHECK(found(late, Bug::kOldDataCounts) == "a batch ran that some rank had not entered");
  Setup three = hosts;
  three.size = 3;
  three.cuts = 1;
  CHECK(found(three, Bug::kKeepsLossToItself) == "a rank waits for one that is lost");
  // Behind all data a last word tells nothing that is not there.
  Setup stream = hosts;
  stream.group = Group::kInOneStream;
  CHECK(found(stream, Bug::kRunOnLastWordAlone) == "");
}

}  // namespace
}  // namespace rueda::testing
