#include "runtime/membership/clock_offset.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <sstream>

#include "collectives/host/monotonic.h"
#include "runtime/membership/first_verdict.h"

namespace rueda::membership {
namespace {

constexpr int kQuestions = 8;

// One number; hosts are of one byte order (it is compared at init).
template <bool send>
Status move_number(int socket, int64_t* number, const Patience& patience) {
  auto* at = reinterpret_cast<char*>(number);
  for (size_t left = sizeof(*number); left > 0;) {
    const ssize_t n = send ? ::send(socket, at, left, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : ::recv(socket, at, left, MSG_DONTWAIT);
    if (n > 0) {
      at += n;
      left -= static_cast<size_t>(n);
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
      return unavailable(std::string("the connection was lost while clocks were compared") +
                         (n == 0 ? "" : std::string(": ") + strerror(errno)));
    } else if (const Status ready =
                   rendezvous::poll_patiently(socket, send ? POLLOUT : POLLIN, patience);
               ready.code() == Code::kDeadlineExceeded) {
      return deadline_exceeded("no answer while clocks were compared (RUEDA_START_TIMEOUT)");
    } else if (!ready.ok()) {
      return ready;
    }
  }
  return {};
}

Result<ClockOffset> ask_for_time(int socket, const Patience& patience) {
  ClockOffset best;
  for (int question = 0; question < kQuestions; ++question) {
    int64_t asked = host::monotonic_ns();
    int64_t there = 0;
    RUEDA_RETURN_IF_ERROR(move_number<true>(socket, &asked, patience));
    RUEDA_RETURN_IF_ERROR(move_number<false>(socket, &there, patience));
    const int64_t answered = host::monotonic_ns();
    const int64_t error = (answered - asked) / 2;
    if (question == 0 || error < best.error) best = {there - (asked + error), error};
  }
  return best;
}

Status tell_time(int socket, const Patience& patience) {
  for (int question = 0; question < kQuestions; ++question) {
    int64_t number = 0;
    RUEDA_RETURN_IF_ERROR(move_number<false>(socket, &number, patience));
    number = host::monotonic_ns();
    RUEDA_RETURN_IF_ERROR(move_number<true>(socket, &number, patience));
  }
  return {};
}

}  // namespace

Result<ClockOffset> compare_clocks(const ClockTask& task) {
  const auto first_of_host = [&](size_t rank) {
    const auto found = std::find(task.hosts.begin(), task.hosts.end(), task.hosts[rank]);
    return static_cast<size_t>(found - task.hosts.begin());
  };
  const auto named = [&](size_t rank, const Status& status) {
    return status.with_message((*task.names)[rank] + ": " + status.message())
        .with_rank(static_cast<Rank>(rank));
  };
  const auto me = static_cast<size_t>(task.rank);
  const size_t first = first_of_host(me);
  if (me == 0) {
    for (size_t rank = 1; rank < task.hosts.size(); ++rank) {
      if (first_of_host(rank) != rank) continue;
      const Status told =
          tell_time((*task.sockets)[rank].front().get(), task.patience(static_cast<Rank>(rank)));
      if (!told.ok()) return named(rank, told);
    }
  }
  if (first == 0) return ClockOffset{};
  const std::string key = task.key.substr(0, task.key.rfind('/') + 1) + std::to_string(first);
  if (first != me) {
    ClockOffset clock;
    RUEDA_ASSIGN_OR_RETURN(const std::string text,
                           get_patiently(task.store, key, task.patience(static_cast<Rank>(first))));
    std::istringstream(text) >> clock.offset >> clock.error;
    return clock;
  }
  const auto asked = ask_for_time((*task.sockets)[0].front().get(), task.patience(0));
  if (!asked.ok()) return named(0, asked.status());
  RUEDA_RETURN_IF_ERROR(task.store->set(
      key, std::to_string(asked.value().offset) + " " + std::to_string(asked.value().error)));
  return asked;
}

}  // namespace rueda::membership
