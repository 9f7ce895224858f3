// How ordered groups end: closed, by a member that leaves or is lost, by lists that differ.
#include <catch2/catch.hpp>

#include <thread>

#include "tests/runtime/group_calls.h"

namespace rueda::testing {
namespace {

using K = CollectiveKind;

TEST_CASE("a member may open late: calls wait for it", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const Ranks list = {0, 1};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      Floats data(3, 1);
      uint32_t group = 0;
      RequestPtr early;
      if (rank == 0) {
        group = must(r.open_group("late", list));
        early = start(r, call_of(group, K::kAllreduce, data, &data));
      }
      // Rank 1 opens only after rank 0 has said hello: this comes behind it.
      const std::string trouble = trouble_with_sum(r, "between");
      if (!trouble.empty()) return trouble;
      if (rank == 1) {
        group = must(r.open_group("late", list));
        early = start(r, call_of(group, K::kAllreduce, data, &data));
      }
      must(end_of(early));
      return data == Floats(3, 2) ? "" : "wrong sum";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("one key with two lists is an error on both that names both lists", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const Ranks list = rank == 1 ? Ranks{1, 0} : Ranks{0, 1, 2};
      const uint32_t group = must(r.open_group("odd", list));
      Floats data(3, 1);
      const Status status = call(r, call_of(group, K::kAllreduce, data, &data));
      must(r.close_group(group));
      const std::string trouble = trouble_with_sum(r, "after");
      if (!trouble.empty()) return trouble;
      if (status.code() != Code::kFailedPrecondition) return status.to_string();
      return status.message();
    });
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(has(text, "rank 0 with ranks 0, 1, 2, by rank 1 with ranks 1, 0"));
    }
  }
}

TEST_CASE("closing is not collective: what both have called ends, what one has called fails there",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const Ranks list = {0, 1};
    const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("closed", list));
      std::vector<Floats> data(3, Floats(2000, 1));
      std::vector<RequestPtr> requests;
      for (int i = 0; i < 2; ++i)
        requests.push_back(start(r, call_of(group, K::kAllreduce, data[i], &data[i])));
      if (rank == 0) {
        must(r.close_group(group));
        const auto after = r.start({call_of(group, K::kAllreduce, data[2], &data[2])});
        if (after.ok()) return "started in a closed group";
      } else {
        requests.push_back(start(r, call_of(group, K::kAllreduce, data[2], &data[2])));
      }
      for (int i = 0; i < 2; ++i) {
        must(end_of(requests[i]));
        if (data[i] != Floats(2000, 2)) return "wrong sum";
      }
      if (rank == 0) return trouble_with_sum(r, "after");
      const Status status = end_of(requests[2]);
      const std::string again =
          r.start({call_of(group, K::kAllreduce, data[2], &data[2])}).ok() ? "" : "not started";
      must(r.close_group(group));
      return trouble_with_sum(r, "after") + again + status.to_string();
    });
    CHECK(texts[0] == "");
    INFO(texts[1]);
    CHECK(has(texts[1], "rank 0"));
    CHECK(has(texts[1], "has closed the group after 2 calls"));
  }
}

TEST_CASE("an abort ends the group on all members with reason and name, and no other",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    for (const bool late : {false, true}) {
      INFO(name_of(kind) << (late ? ", opened late" : ""));
      RuntimeWorld world(kind, 3);
      const Ranks list = {0, 1, 2};
      const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        const uint32_t other = must(r.open_group("other", list));
        uint32_t group = 0;
        if (!late || rank != 2) group = must(r.open_group("aborted", list));
        std::string trouble = late ? "" : trouble_with_group(r, group, list);
        // That all have ended this one.
        if (trouble.empty()) trouble = trouble_with_group(r, other, list);
        if (!trouble.empty()) return trouble;
        std::vector<Floats> data(4, Floats(300000, 1));
        Floats inbox(4, 1);
        std::vector<RequestPtr> pending;
        if (rank == 0) {
          // That the others have called, or will, or never do.
          for (size_t i = 0; i < 3; ++i)
            pending.push_back(start(r, call_of(group, K::kAllreduce, data[i], &data[i])));
          auto receive = call_of(group, K::kRecv, inbox, &inbox);
          receive.peer = 1;
          pending.push_back(start(r, receive));
          pending.push_back(start(r, call_of(group, K::kBroadcast, data[3], &data[3])));
        }
        Floats mine(300000, 1);
        if (rank == 1) {
          pending.push_back(start(r, call_of(group, K::kAllreduce, mine, &mine)));
          must(r.abort_group(group, "enough"));
        }
        // Rank 2 begins when rank 1 has let go of the group, and may not have heard of it.
        trouble = trouble_with_group(r, other, list);
        if (!trouble.empty()) return trouble;
        if (rank == 2 && late) group = must(r.open_group("aborted", list));
        if (rank == 2) pending.push_back(start(r, call_of(group, K::kAllreduce, mine, &mine)));
        std::string text;
        for (const RequestPtr& request : pending) {
          const Status status = end_of(request);
          if (status.code() != Code::kCancelled) return "code: " + status.to_string();
          text = status.message();
        }
        if (call(r, call_of(group, K::kAllreduce, inbox, &inbox)).code() != Code::kCancelled)
          return "goes on";
        must(r.close_group(group));
        return text;
      });
      for (const std::string& text : texts) {
        INFO(text);
        CHECK(has(text, "rank 1 "));
        CHECK(has(text, "has ended the group: enough"));
        CHECK(has(text, "in group 'aborted'"));
      }
    }
  }
}

TEST_CASE("who waits for long in a group is told who has not called", "[ordered_group]") {
  Config config;
  config.stall_check_seconds = 0.05;
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    for (const bool opens : {true, false}) {
      INFO(name_of(kind) << (opens ? ", open everywhere" : ", not open at rank 2"));
      RuntimeWorld world(kind, 3, config);
      const Ranks list = {0, 1, 2};
      const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
        uint32_t group = 0;
        if (opens || rank != 2) group = must(r.open_group("late", list));
        const uint32_t two = rank == 2 ? 0 : must(r.open_group("two", {1, 0}));
        Floats data(4, 1);
        if (rank != 2) {
          const RequestPtr waits = start(r, call_of(group, K::kAllreduce, data, &data));
          // Until the note is there: a deadline that passes reads it.
          Status passed;
          do {
            passed = waits->wait(std::chrono::milliseconds(10));
          } while (passed.code() == Code::kDeadlineExceeded &&
                   !has(passed.message(), "not yet called by rank 2 (pid"));
          if (passed.code() != Code::kDeadlineExceeded) return passed.to_string();
          std::string trouble = trouble_with_group(r, two, {0, 1});
          if (trouble.empty()) trouble = trouble_with_sum(r, "now");
          must(end_of(waits));
          return trouble + (data == Floats(4, 3) ? "" : "wrong sum");
        }
        const std::string trouble = trouble_with_sum(r, "now");  // both others have their note
        if (!opens) group = must(r.open_group("late", list));
        must(call(r, call_of(group, K::kAllreduce, data, &data)));
        return trouble;
      });
      for (const auto& error : errors) CHECK(error == "");
    }
  }
}

TEST_CASE("a call that stands still for too long ends its group", "[ordered_group]") {
  Config config;
  config.stall_check_seconds = 0.05;
  config.stall_shutdown_seconds = 1;  // both callers have come by then, on a busy machine too
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3, config);
    const Ranks list = {0, 1, 2};
    const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("still", list));
      const uint32_t two = rank == 2 ? 0 : must(r.open_group("two", {1, 0}));
      Floats data(4, 1);
      if (rank == 2) return "";
      const Status status = call(r, call_of(group, K::kAllreduce, data, &data));
      const std::string trouble = trouble_with_group(r, two, {0, 1});
      return trouble.empty() ? status.to_string() : trouble;
    });
    for (const Rank rank : {0, 1}) {
      const std::string& text = texts[static_cast<size_t>(rank)];
      INFO(text);
      CHECK(has(text, "deadline exceeded"));
      CHECK(has(text, "allreduce 'still#0' was called by ranks 0, 1 but not by rank 2 (pid"));
    }
  }
}

TEST_CASE("groups are opened and closed a thousand times", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const Ranks list = {1, 0};
    const int rounds = is_short() ? 50 : 1000;
    const auto errors = world.run([&](Rank, engine::Runtime& r) -> std::string {
      for (int i = 0; i < rounds; ++i) {
        const uint32_t group = must(r.open_group("again", list));
        const std::string trouble = trouble_with_group(r, group, list);
        if (!trouble.empty()) return std::to_string(i) + ": " + trouble;
        must(r.close_group(group));
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("more groups at once than there are channels", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {2, 1, 0};
    const auto errors = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      std::vector<uint32_t> groups;
      for (int i = 0; i < 64; ++i)
        groups.push_back(must(r.open_group("group " + std::to_string(i), list)));
      for (int round = 0; round < 3; ++round) {
        for (const uint32_t group : groups) {
          const std::string trouble = trouble_with_group(r, group, list, 1 + round * 3000);
          if (!trouble.empty()) return trouble;
        }
      }
      // All at once, in an order of each rank's own.
      std::vector<Floats> data;
      for (size_t i = 0; i < groups.size(); ++i) data.emplace_back(3, static_cast<float>(i));
      std::vector<RequestPtr> requests;
      for (size_t i = 0; i < groups.size(); ++i) {
        const size_t at = (i * static_cast<size_t>(2 * rank + 1)) % groups.size();
        requests.push_back(start(r, call_of(groups[at], K::kAllreduce, data[at], &data[at])));
      }
      for (const RequestPtr& request : requests) must(end_of(request));
      for (size_t i = 0; i < groups.size(); ++i) {
        if (data[i] != Floats(3, 3 * static_cast<float>(i))) return "mixed up";
      }
      return "";
    });
    for (const auto& error : errors) CHECK(error == "");
  }
}

TEST_CASE("a member that leaves the job in order is named by what still needs it",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 3);
    const Ranks list = {0, 1, 2};
    const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("left", list));
      const std::string trouble = trouble_with_group(r, group, list);
      if (!trouble.empty()) return trouble;
      if (rank == 2) {
        r.shutdown();
        Floats data(3, 1);
        return r.start({call_of(group, K::kAllreduce, data, &data)}).ok() ? "started" : "";
      }
      Floats data(3, 1);
      const Status status = call(r, call_of(group, K::kAllreduce, data, &data));
      return status.to_string();
    });
    CHECK(texts[2] == "");
    for (const Rank rank : {0, 1}) {
      const std::string& text = texts[static_cast<size_t>(rank)];
      INFO(text);
      CHECK(has(text, "cancelled"));
      CHECK(has(text, "allreduce in group 'left'"));
      CHECK((has(text, "rank 2") || has(text, "rank 0") || has(text, "rank 1")));
    }
  }
}

TEST_CASE("a member that is lost before it has opened a group is named to who waits there",
          "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp, Kind::kPairs}) {
    for (const bool opened : {false, true}) {
      INFO(name_of(kind) << (opened ? ", in order" : ""));
      auto worlds = make_worlds(kind, 3);
      std::vector<std::unique_ptr<engine::Runtime>> runtimes(3);
      for (Rank rank = 0; rank < (opened ? 3 : 2); ++rank) {
        const auto at = static_cast<size_t>(rank);
        runtimes[at] = must(engine::Runtime::create({}, std::move(worlds[at]->joined)));
      }
      Floats data[2] = {Floats(40000, 1), Floats(40000, 1)};
      uint32_t two[2];
      const auto requests = on_ranks(2, [&](Rank rank) {
        engine::Runtime& r = *runtimes[static_cast<size_t>(rank)];
        const uint32_t all = must(r.open_group("lost", {0, 1, 2}));
        two[rank] = must(r.open_group("two", {1, 0}));
        if (!trouble_with_group(r, two[rank], {0, 1}).empty()) throw Failure("two");
        return start(r, call_of(all, K::kAllreduce, data[rank], &data[rank]));
      });
      worlds[2].reset();  // without a goodbye, unless it has a runtime
      runtimes[2].reset();
      for (const Rank rank : {0, 1}) {
        const Status status = end_of(requests[static_cast<size_t>(rank)]);
        engine::Runtime& r = *runtimes[static_cast<size_t>(rank)];
        CHECK((opened || !r.start({call_of(two[rank], K::kAllreduce, data[0], &data[0])}).ok()));
        INFO(status.to_string());
        CHECK(status.code() == (opened ? Code::kCancelled : Code::kUnavailable));
        CHECK(has(status.message(), "allreduce in group 'lost'"));
        CHECK((opened || status.facts().rank == 2));
      }
    }
  }
}

TEST_CASE("shutdown ends what not all members have called", "[ordered_group]") {
  for (const Kind kind : {Kind::kShm, Kind::kTcp}) {
    INFO(name_of(kind));
    RuntimeWorld world(kind, 2);
    const auto texts = world.run([&](Rank rank, engine::Runtime& r) -> std::string {
      const uint32_t group = must(r.open_group("half", {0, 1}));
      const std::string trouble = trouble_with_group(r, group, {0, 1});
      if (!trouble.empty()) return trouble;
      Floats data(3000, 1);
      RequestPtr pending;
      if (rank == 0) pending = start(r, call_of(group, K::kAllreduce, data, &data));
      r.shutdown();
      return pending == nullptr ? "" : end_of(pending).to_string();
    });
    INFO(texts[0]);
    CHECK(texts[1] == "");
    CHECK((has(texts[0], "cancelled") || has(texts[0], "unavailable")));
  }
}

}  // namespace
}  // namespace rueda::testing
