// The agreement against a member that sends anything: as the root, and as a rank that hears a root,
// with and without step plans. Every handle comes back exactly once, and nothing is sent after
// giving up.
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "proto/negotiation_codec.h"
#include "runtime/negotiation/negotiator.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/round_trip.h"

namespace rueda::fuzz {
namespace {

namespace action = negotiation::action;
namespace event = negotiation::event;

using negotiation::Members;
using negotiation::Negotiator;
using negotiation::Time;
using plan::OpHandle;

constexpr uint64_t kEpoch = 7;
constexpr Rank kSize = 3;

// What owns the agreement: keeps the books of its handles, and enters plans that never get far.
class Owner {
 public:
  Owner(const Config& config, Rank rank, bool plans)
      : negotiator(config,
                   {rank, kSize, kEpoch, Members({"rank 0", "rank 1", "rank 2"}), 0, plans}),
        rank_(rank) {}

  OpHandle take() {
    out_.push_back(true);
    return OpHandle(reinterpret_cast<void*>(64 * out_.size()));
  }
  plan::Progress progress() {
    if (!negotiator.planning()) return {};
    return {0, false, last_words_};
  }
  // A peer is seen to have left the plan, having entered nothing.
  void peer_revokes(size_t peer) { last_words_[peer] = 0; }
  void perform() {
    while (!negotiator.actions().empty()) {
      for (const negotiation::Action& next : std::exchange(negotiator.actions(), {}))
        std::visit([this](const auto& what) { perform(what); }, next);
    }
  }
  void end() {
    for (const OpHandle handle : std::exchange(entered_, {})) back(handle);
    for (const bool out : out_) expect(!out, "every handle comes back");
  }

  Negotiator negotiator;
  bool given_up = false;

 private:
  void back(OpHandle handle) {
    const size_t number = reinterpret_cast<uintptr_t>(handle.as<void>()) / 64;
    expect(number > 0 && number <= out_.size() && out_[number - 1], "a handle comes back once");
    out_[number - 1] = false;
  }
  void perform(const action::Send& send) {
    expect(send.to >= action::Send::kEveryone && send.to < kSize, "messages go to members");
    expect(send.message.size() <= wire::kMaxMessageBytes, "messages are bounded");
    expect(!given_up, "nothing is sent after giving up");
  }
  void perform(const action::Launch& launch) {
    expect(launch.members.size() == launch.batch.entries.size() ||
               launch.batch.kind == CollectiveKind::kJoin,
           "one member for each entry");
    for (const action::Member& member : launch.members)
      if (member.neutral == nullptr) back(member.handle);
  }
  void perform(const action::Finish& finish) { back(finish.handle); }
  void perform(const action::GiveUp& end) {
    expect(!end.verdict.ok(), "giving up has a reason");
    given_up = true;
  }
  void perform(const action::AskSites& ask) {
    event::Sites answer{{}, {}};
    for (const auto& question : ask.questions) answer.sites.push_back({question.name, "here"});
    negotiator.on(answer);
  }
  void perform(const action::BeginPlan& begin) {
    expect(!begin.plan.batches.empty(), "a plan has batches");
    entered_.clear();
    last_words_.assign(kSize, std::nullopt);
  }
  void perform(const action::EnterBatch& enter) {
    entered_.insert(entered_.end(), enter.handles.begin(), enter.handles.end());
  }
  void perform(const action::RevokePlan& revoke) {
    last_words_[static_cast<size_t>(rank_)] = revoke.last_word;
  }
  void perform(const action::EndPlan& end) {
    expect(end.first == 0, "nothing was entered by all");
    const std::vector<OpHandle> back = std::exchange(entered_, {});
    negotiator.on(event::Withdrawn{back, {}});
  }
  void perform(const action::Asked&) {}
  void perform(const action::Hold&) {}
  void perform(const action::Note&) {}
  void perform(const action::Blame&) {}
  void perform(const action::Warn&) {}
  void perform(const action::Arrived&) {}

  Rank rank_;
  std::vector<bool> out_;
  std::vector<OpHandle> entered_;
  std::vector<std::optional<uint64_t>> last_words_;
};

// The same few tensors that the corpus speaks of.
wire::Request request(uint8_t number) {
  wire::Request request;
  request.name = "allreduce." + std::string(1, static_cast<char>('a' + number % 4));
  request.shape = {4};
  return request;
}

void member(Input input, Rank rank, bool plans) {
  Config config;
  config.cache_capacity = 8;
  Owner owner(config, rank, plans);
  Negotiator& negotiator = owner.negotiator;
  std::vector<wire::Request> requests;
  for (uint8_t i = 0; i < 4; ++i) requests.push_back(request(i));
  std::vector<bool> submitted(requests.size());
  double seconds = 0;
  const auto now = [&] {
    return Time(std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds)));
  };
  for (int turn = 0; turn < 64 && !input.empty() && !owner.given_up; ++turn) {
    seconds += 0.1 * input.number<uint8_t>();
    const auto what = input.number<uint8_t>();
    const size_t index = what / 8 % requests.size();
    switch (what % 8) {
      case 0:
        if (!submitted[index]) {
          submitted[index] = true;
          negotiator.on(event::Submit{&requests[index], owner.take(), now()});
        }
        break;
      case 1: negotiator.on(event::Awaited{requests[index].name}); break;
      case 2: negotiator.on(event::Flush{now()}); break;
      case 3:
        if (what / 8 == 0) negotiator.on(event::PeerLeft{rank == 0 ? 2 : 0, now()});
        if (what / 8 > 28 && negotiator.planning()) owner.peer_revokes(what % 3);
        break;
      case 4:
        if (what / 8 == 0) negotiator.on(event::Leave{now()});
        break;
      default: {
        const Rank from = rank == 0 ? static_cast<Rank>(1 + what / 8 % 2) : 0;
        negotiator.on(event::Message{from, input.bytes(), now()});
      }
    }
    owner.perform();
    if (!owner.given_up) negotiator.on(event::Tick{now(), owner.progress()});
    owner.perform();
  }
  negotiator.on(event::BreakDown{{Code::kCancelled, "the end"}});
  owner.perform();
  owner.end();
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;
  fuzz::Input input(data, size);
  const auto what = input.number<uint8_t>();
  const bool plans = what >= 128;
  switch (what % 4) {
    case 0: fuzz::round_trip<wire::RequestList>(input.rest()); break;
    case 1: fuzz::round_trip<wire::ResponseList>(input.rest()); break;
    case 2: fuzz::member(input, 0, plans); break;
    default: fuzz::member(input, 1, plans);
  }
  return 0;
}
