#include "launcher/hosts/answering.h"

#include <poll.h>

#include <algorithm>
#include <optional>

#include "launcher/hosts/addresses.h"

namespace rueda::launcher {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAgain{50};  // between two tries of one that refuses

// One address. While it is open nobody knows whether somebody answers there.
struct Try {
  std::string text, address, error;
  int port = 0;
  bool answers = false;
  UniqueFd pending = {};
  std::optional<Clock::time_point> again_at = {};

  void begin() {
    again_at.reset();
    auto connecting = begin_connecting(address, port);
    if (connecting.ok())
      pending = std::move(connecting).value();
    else
      refused(connecting.status());
  }
  void look() {
    const Status connected = end_connecting(pending.get());
    pending.reset();
    answers = connected.ok();
    if (!answers) refused(connected);
  }
  void refused(const Status& why) {
    error = why.message();
    again_at = Clock::now() + kAgain;
  }
};

int wait_limit(Clock::time_point until) {
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

// Until one that is open is known, or this time.
void wait_for_some(std::vector<Try>* tries, Clock::time_point until) {
  std::vector<pollfd> fds;
  std::vector<Try*> open;
  for (Try& one : *tries) {
    if (!one.pending) continue;
    fds.push_back({one.pending.get(), POLLOUT, 0});
    open.push_back(&one);
  }
  if (poll(fds.data(), fds.size(), wait_limit(until)) <= 0) return;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents != 0) open[i]->look();
  }
}

}  // namespace

AnsweringAddresses find_answering(const std::vector<std::string>& addresses, milliseconds limit,
                                  milliseconds grace) {
  const auto begun = Clock::now();
  std::vector<Try> tries;
  for (const std::string& text : addresses) {
    Try& one = tries.emplace_back();
    one.text = text;
    if (split_port(text, &one.address, &one.port))
      one.begin();
    else
      one.error = "it is no address with a port";
  }
  for (;;) {
    const bool any = std::ranges::any_of(tries, [](const Try& one) { return one.answers; });
    const bool open = std::ranges::any_of(tries, [](const Try& one) { return bool{one.pending}; });
    const auto now = Clock::now(), end = begun + (any ? std::min(grace, limit) : limit);
    if (!open || now >= end) break;
    auto until = end;
    for (Try& one : tries) {
      if (any || !one.again_at) continue;
      if (*one.again_at <= now) one.begin();
      if (one.again_at) until = std::min(until, *one.again_at);
    }
    wait_for_some(&tries, until);
  }
  AnsweringAddresses found;
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begun);
  for (const Try& one : tries) {
    const std::string why =
        one.pending ? "no answer in " + std::to_string(waited.count()) + " ms" : one.error;
    if (one.answers)
      found.answering.push_back(one.text);
    else
      found.table += "\n  " + one.text + "  " + why;
  }
  return found;
}

}  // namespace rueda::launcher
