// Every interleaving of a small revocation: breadth first over all states.
#include "tests/simulation/revocation_model.h"

#include <catch2/catch.hpp>

#include <deque>
#include <functional>
#include <set>
#include <string>

namespace rueda::testing {
namespace {

struct Explored {
  size_t states = 0;
  size_t ends = 0;
  std::string broken;
};

// batches: how many each rank would enter if nobody revoked.
Explored explore(int size, int32_t batches, bool revocations, int crashes, Bug bug) {
  Explored result;
  std::set<RevocationModel> known;
  std::deque<RevocationModel> next;
  RevocationModel start;
  start.size = size;
  const auto reach = [&](const RevocationModel& state) {
    if (known.insert(state).second) next.push_back(state);
  };
  reach(start);
  while (!next.empty() && result.broken.empty()) {
    const RevocationModel at = next.front();
    next.pop_front();
    result.broken = at.broken();
    bool moved = false;
    int dead = 0;
    for (int r = 0; r < size; ++r) dead += at.crashed[r];
    const auto go = [&](const std::function<void(RevocationModel*)>& change) {
      RevocationModel to = at;
      change(&to);
      moved = moved || to != at;
      reach(to);
    };
    for (int r = 0; r < size; ++r) {
      bool someone_revoked = false;
      for (int s = 0; s < size; ++s) someone_revoked |= at.seen[r][s].revoked;
      if (at.may_enter(r) && at.words[r].entered < batches) go([&](auto* to) { to->enter(r); });
      if (at.may_revoke(r) && (revocations || someone_revoked))
        go([&](auto* to) { to->revoke(r); });
      for (int w = 0; w < size; ++w) {
        if (at.may_observe(r, w, at.words[w]))
          go([&](auto* to) { to->observe(r, w, at.words[w]); });
      }
      if (at.may_run(r, bug)) go([&](auto* to) { to->run(r); });
      if (at.may_withdraw(r, bug)) go([&](auto* to) { to->withdraw(r, at.last_common(r, bug)); });
      if (dead < crashes && !at.crashed[r])
        reach([&] {
          RevocationModel to = at;
          to.crashed[r] = true;
          return to;
        }());
    }
    if (!moved && dead == 0) {
      ++result.ends;
      if (result.broken.empty()) result.broken = at.wrong_end();
    }
  }
  result.states = known.size();
  return result;
}

TEST_CASE("no interleaving of two batches on up to three ranks breaks the protocol", "[model]") {
  for (const int size : {1, 2, 3}) {
    for (const bool revocations : {false, true}) {
      const Explored all = explore(size, 2, revocations, size > 1 ? 1 : 0, Bug::kNone);
      INFO("ranks " << size << " revocations " << revocations);
      CHECK(all.broken == "");
      CHECK(all.ends > 0);
      if (size == 3 && revocations) CHECK(all.states > 10'000);  // it has looked at something
    }
  }
}

TEST_CASE("the model finds planted mistakes", "[model]") {
  CHECK(explore(2, 2, true, 0, Bug::kMostInsteadOfLeast).broken != "");
  CHECK(explore(2, 1, false, 0, Bug::kRunBeforeAllHaveEntered).broken != "");
  CHECK(explore(2, 1, true, 0, Bug::kBackBeforeItsBatchesEnded).broken != "");
}

}  // namespace
}  // namespace rueda::testing
