// The agreement against a member that sends anything: as the root, and as a rank that hears a root.
// Every ticket comes back exactly once, and nothing is sent after giving up.
#include <chrono>
#include <map>
#include <memory>
#include <vector>

#include "proto/negotiation_codec.h"
#include "runtime/negotiation/negotiator.h"
#include "tests/fuzz/input.h"

namespace rueda::fuzz {
namespace {

using negotiation::Members;
using negotiation::Negotiator;
using negotiation::Time;
using plan::Ticket;

constexpr uint64_t kEpoch = 7;
constexpr Rank kSize = 3;

template <typename Message>
void round_trip(std::string_view bytes) {
  Message first, second;
  if (!wire::decode(bytes, &first).ok()) return;
  const std::string again = wire::encode(first);
  expect(wire::decode(again, &second).ok(), "what was written can be read");
  expect(wire::encode(second) == again, "and is the same");
}

Ticket ticket(size_t number) { return reinterpret_cast<Ticket>((number + 1) * 64); }

class Effects final : public negotiation::Effects {
 public:
  void send_control(Rank to, const std::string& message) override {
    expect(to >= 0 && to < kSize, "messages go to members");
    expect(message.size() <= wire::kMaxMessageBytes, "messages are bounded");
  }
  void launch(const wire::Response& batch, const std::vector<Ticket>& tickets) override {
    expect(tickets.size() == batch.entries.size() || batch.kind == CollectiveKind::kJoin,
           "one ticket for each entry");
    for (const Ticket each : tickets) back(each);
  }
  Ticket neutral(const wire::Request&) override { return take(); }
  void finish(Ticket each, const Status&) override { back(each); }
  void note(Ticket, const std::string&) override {}
  bool may_hold(Ticket) override { return false; }
  void blame(const std::string&) override {}
  void warn(const std::string&) override {}
  void give_up(const Status& verdict) override {
    expect(!verdict.ok(), "giving up has a reason");
    given_up = true;
    negotiator->drop(verdict);
  }

  Ticket take() {
    out_[ticket(next_)] = true;
    return ticket(next_++);
  }
  void back(Ticket each) {
    const auto found = out_.find(each);
    expect(found != out_.end() && found->second, "a ticket comes back once");
    found->second = false;
  }
  bool all_back() const {
    for (const auto& [each, out] : out_)
      if (out) return false;
    return true;
  }

  Negotiator* negotiator = nullptr;
  bool given_up = false;

 private:
  std::map<Ticket, bool> out_;
  size_t next_ = 0;
};

// The same few tensors that the corpus speaks of.
wire::Request request(uint8_t number) {
  wire::Request request;
  request.name = "allreduce." + std::string(1, static_cast<char>('a' + number % 4));
  request.shape = {4};
  return request;
}

void member(Input input, Rank rank) {
  Config config;
  config.cache_capacity = 8;
  Effects effects;
  std::vector<wire::Request> requests;
  for (uint8_t i = 0; i < 4; ++i) requests.push_back(request(i));
  std::vector<bool> submitted(requests.size());
  const std::vector<std::string> names = {"rank 0", "rank 1", "rank 2"};
  Negotiator negotiator(config, {rank, kSize, kEpoch, Members(names), 0}, &effects);
  effects.negotiator = &negotiator;
  double seconds = 0;
  const auto now = [&] {
    return Time(std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds)));
  };
  for (int turn = 0; turn < 64 && !input.empty() && !effects.given_up; ++turn) {
    seconds += 0.1 * input.number<uint8_t>();
    const auto what = input.number<uint8_t>();
    const size_t index = what / 8 % requests.size();
    switch (what % 8) {
      case 0:
        if (!submitted[index]) {
          submitted[index] = true;
          negotiator.submit(requests[index], effects.take(), now());
        }
        break;
      case 1: negotiator.wanted(requests[index].name); break;
      case 2: negotiator.flush(now()); break;
      case 3:
        if (what / 8 == 0) negotiator.on_peer_left(rank == 0 ? 2 : 0, now());
        break;
      case 4:
        if (what / 8 == 0) negotiator.leave(now());
        break;
      default: {
        const Rank from = rank == 0 ? static_cast<Rank>(1 + what / 8 % 2) : 0;
        negotiator.on_message(from, input.bytes(), now());
      }
    }
    if (!effects.given_up) negotiator.on_time(now());
  }
  negotiator.drop({Code::kCancelled, "the end"});
  expect(effects.all_back(), "every ticket comes back");
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  fuzz::Input input(data, size);
  switch (input.number<uint8_t>() % 4) {
    case 0: fuzz::round_trip<wire::RequestList>(input.rest()); break;
    case 1: fuzz::round_trip<wire::ResponseList>(input.rest()); break;
    case 2: fuzz::member(input, 0); break;
    default: fuzz::member(input, 1);
  }
  return 0;
}
