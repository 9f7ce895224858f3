// What controller and agents tell each other about ranks: bounded, checked, the same on both sides.
#include "launcher/observe/host_report.h"

#include <catch2/catch.hpp>

#include "launcher/hosts/limits.h"
#include "launcher/hosts/report_wire.h"
#include "launcher/observe/status_report.h"

using namespace rueda::launcher;

TEST_CASE("a report comes out as it went in, one message per rank", "[report]") {
  HostReport report;
  report.round = 7;
  report.now_ns = 12345;
  for (int rank = 2; rank < 4; ++rank) {
    RankView view;
    view.record.rank = rank;
    view.record.life = RankRecord::Life::kDead;
    view.record.state = "killed by signal 9 (SIGKILL)";
    view.record.stacks = "here\nthere\n";
    view.pid = 100 + rank;
    view.use = {5, 6, 7, 8};
    view.stalled = 2;
    view.pieces = {{0, std::string(16, 'a')}, {4096, std::string(8, 'b')}};
    report.ranks.push_back(view);
  }
  auto messages = to_wire(report);
  REQUIRE(messages.size() == 2);
  CHECK_FALSE(messages[0].observed().last());
  CHECK(messages[1].observed().last());
  for (int i = 0; i < 2; ++i) {
    auto& observed = *messages[static_cast<size_t>(i)].mutable_observed();
    CHECK(observed.round() == 7);
    CHECK(observed.now_ns() == 12345);
    const auto view = view_from_wire(&observed);
    REQUIRE(view.ok());
    CHECK(view.value().record.rank == 2 + i);
    CHECK(view.value().pid == 102 + i);
    CHECK(view.value().use == ProcessUse{5, 6, 7, 8});
    CHECK(view.value().stalled == 2);
    CHECK(view.value().record.life == RankRecord::Life::kDead);
    CHECK(view.value().record.state == "killed by signal 9 (SIGKILL)");
    CHECK(view.value().record.stacks == "here\nthere\n");
    REQUIRE(view.value().pieces.size() == 2);
    CHECK(view.value().pieces[1].offset == 4096);
    CHECK(view.value().pieces[1].bytes == "bbbbbbbb");
  }
}

TEST_CASE("a rank's counters come out as they went in, and by their names in the status",
          "[report]") {
  RankCounters counters;
  counters.rank = 3;
  uint64_t number = 100;
  for (const auto& row : rueda::counters::kProgress) counters.progress.*row.field = ++number;
  counters.operation = "allreduce 'x'";
  counters.operations = 9;
  counters.step = 4;
  CHECK(from_wire(to_wire(counters)) == counters);

  JobStatus job;
  job.hosts.push_back({"node1", "running", 0, {3}});
  job.counters.push_back(counters);
  const std::string text = status_json(job);
  for (const auto& row : rueda::counters::kProgress) {
    CHECK_THAT(text, Catch::Contains("\"" + std::string(row.name) +
                                     "\":" + std::to_string(counters.progress.*row.field)));
  }
}

TEST_CASE("a host without ranks answers, too", "[report]") {
  const auto messages = to_wire(HostReport{3, 1, {}});
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].observed().last());
  CHECK(messages[0].observed().rank() == -1);
}

TEST_CASE("long texts are cut, and refused where they were not", "[report]") {
  HostReport report;
  report.ranks.emplace_back();
  report.ranks[0].record.stacks = std::string(2 * kMaxStacksText, 'x');
  report.ranks[0].record.state = std::string(2 * kMaxStateText, 'y');
  auto messages = to_wire(report);
  CHECK(messages[0].ByteSizeLong() < static_cast<size_t>(kMaxControlBytes));
  CHECK(view_from_wire(messages[0].mutable_observed()).ok());
  control::Observed bad;
  bad.set_stacks(std::string(kMaxStacksText + 1, 'x'));
  CHECK_FALSE(view_from_wire(&bad).ok());
  bad.clear_stacks();
  bad.set_life(static_cast<control::Observed::Life>(9));
  CHECK_FALSE(view_from_wire(&bad).ok());
}

TEST_CASE("orders of an elastic job are read back", "[report]") {
  const auto again = [](const Order& order) { return order_from_wire(to_wire(order)).value(); };
  Order order;
  order.kind = Order::Kind::kStartMember;
  order.start = {9, {2, 4, 1, 2, 0, 2}, "node", 1};
  CHECK(again(order).start.member == 9);
  CHECK(again(order).start.place.local_size == 2);
  CHECK(again(order).start.slot == 1);
  order.start.slot = -1;
  CHECK(again(order).start.slot == -1);
  order = {};
  order.kind = Order::Kind::kStopMember;
  order.member = 7;
  order.text = "why";
  order.knows = true;
  CHECK(again(order).kind == order.kind);
  CHECK(again(order).member == 7);
  CHECK(again(order).text == "why");
  CHECK(again(order).knows);
  order = {};
  order.kind = Order::Kind::kBeginEpoch;
  order.ranks = {{4, 1}, {8, 0}, {11, 2}};
  CHECK(again(order).kind == order.kind);
  CHECK(again(order).ranks == order.ranks);
  order = {};
  order.kind = Order::Kind::kAnnounce;
  order.word = uint64_t{5} << 8 | 3;
  CHECK(again(order).kind == order.kind);
  CHECK(again(order).word == order.word);
  order = {};
  order.kind = Order::Kind::kJobOver;
  order.exit_code = 75;
  CHECK(again(order).kind == order.kind);
  CHECK(again(order).exit_code == 75);
  order = {};
  order.kind = Order::Kind::kRankLost;
  order.lost.epoch = 3;
  order.lost.member = 12;
  order.lost.cause.set("so");
  CHECK(again(order).kind == order.kind);
  CHECK(again(order).lost.member == 12);
  CHECK(again(order).lost.ends(3));
}

TEST_CASE("orders of the controller are read back; other messages are none", "[report]") {
  const auto order = order_from_wire(to_wire(HostQuestion{5, Detail::kWhole, {1, 3}}));
  REQUIRE(order.has_value());
  CHECK(order->kind == Order::Kind::kObserve);
  CHECK(order->question.round == 5);
  CHECK(order->question.detail == Detail::kWhole);
  CHECK(order->question.stacks_of == std::vector<rueda::Rank>{1, 3});
  control::ControllerMessage message;
  message.mutable_mail()->set_member(2);
  message.mutable_mail()->set_text("so");
  const auto mail = order_from_wire(message);
  REQUIRE(mail.has_value());
  CHECK(mail->kind == Order::Kind::kMail);
  CHECK(mail->member == 2);
  CHECK(mail->text == "so");
  message.mutable_heartbeat();
  CHECK_FALSE(order_from_wire(message).has_value());
  message.mutable_order()->set_kind(static_cast<control::Order::Kind>(77));
  CHECK_FALSE(order_from_wire(message).has_value());
}
