// A job on one host: what its agent tells the controller beside it, and is told.
#include "launcher/controller/local_controller.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace rueda::launcher {
namespace {

class Listener : public ControlledHost {
 public:
  void follow(const Order& order) override { orders.push_back(order); }
  HostEnd end() const override { return known; }
  bool is_wanted() override { return false; }
  void add_to_poll(std::vector<pollfd>*) const override {}

  std::vector<Order> orders;
  HostEnd known;
};

life::LostRank lost(Rank rank, const std::string& cause, bool is_final) {
  life::LostRank lost;
  lost.rank = rank;
  lost.member = first_member(rank);
  lost.pid = 100 + rank;
  lost.cause_is_final = is_final ? 1 : 0;
  lost.cause.set(cause);
  return lost;
}

RankEnd ended(Rank rank, int wait_status) {
  RankEnd end;
  end.rank = rank;
  end.member = first_member(rank);
  end.pid = 100 + rank;
  end.wait_status = wait_status;
  return end;
}

BooksPlan plan(int ranks) {
  BooksPlan plan;
  plan.options.num_proc = ranks;
  return plan;
}

constexpr int kKilled = 9;

}  // namespace

TEST_CASE("the first verdict goes to the host, and what more is known of the same rank") {
  const BooksPlan books = plan(3);
  LocalController controller(books, "");
  Listener host;
  controller.serve(&host);
  REQUIRE(controller.open().ok());

  controller.rank_lost(lost(1, "ended", false));
  controller.rank_lost(lost(2, "ended too", true));
  controller.rank_lost(lost(1, "killed", true));
  controller.rank_lost(lost(1, "killed once more", true));
  REQUIRE(host.orders.size() == 2);
  for (const Order& order : host.orders) {
    CHECK(order.kind == Order::Kind::kRankLost);
    CHECK(order.lost.rank == 1);
  }
  CHECK(host.orders[0].lost.cause.str() == "ended");
  CHECK(host.orders[1].lost.cause.str() == "killed");
}

TEST_CASE("what has gone wrong on the host decides the exit code") {
  const BooksPlan books = plan(2);
  LocalController controller(books, "");
  Listener host;
  controller.serve(&host);
  REQUIRE(controller.open().ok());
  controller.rank_ended(ended(0, kKilled));
  controller.rank_ended(ended(1, 0));

  SECTION("a rank") {
    controller.finish();
    CHECK(controller.exit_code() == 128 + kKilled);
  }
  SECTION("a signal that its agent got") {
    host.known.cause = StopCause::kSignal;
    host.known.signal = 15;
    controller.finish();
    CHECK(controller.exit_code() == 128 + 15);
  }
  SECTION("the launcher itself") {
    controller.failed("no more processes");
    controller.finish();
    CHECK(controller.exit_code() == 70);
  }
}

}  // namespace rueda::launcher
