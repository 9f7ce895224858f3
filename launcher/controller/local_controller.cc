#include "launcher/controller/local_controller.h"

#include <algorithm>

#include "launcher/job/exit_code.h"

namespace rueda::launcher {

Status LocalController::open() {
  JobBooks::ElasticDoors doors;
  doors.tell = [this](const std::string&, const Order& order) { host_->follow(order); };
  doors.ready_hosts = [](const std::vector<HostSlots>& found) {
    return ReadyHosts{found};
  };  // all are we
  doors.address_of = [](const std::string&) { return std::string(); };
  RUEDA_RETURN_IF_ERROR(books_.open(std::move(doors)));
  if (books_.on_terminal()) books_.say(first_line_);
  return {};
}

void LocalController::failed(const std::string& why) {
  failed_ = true;
  books_.say(why);
}

int LocalController::poll_limit_ms() const {
  const auto lines = books_.next_deadline();
  if (!lines) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(*lines - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
}

void LocalController::rank_started(const MemberStart& start, pid_t pid, const std::string& error) {
  if (ElasticMembers* const members = books_.elastic()) members->started(start, pid, error);
  if (!error.empty()) books_.say(error);
}

void LocalController::work() {
  ElasticMembers* const members = books_.elastic();
  // A rank that ends because we stop it is not replaced.
  if (members != nullptr && host_->end().cause != StopCause::kNone) members->stop();
  books_.work();
  if (!books_.stdout_closed() || closed_told_) return;
  closed_told_ = true;
  Order order;
  order.kind = Order::Kind::kOutputClosed;
  host_->follow(order);
}

void LocalController::rank_lost(const life::LostRank& lost) {
  if (ElasticMembers* const members = books_.elastic()) return members->lost(lost);
  books_.rank_lost(lost, [&] {
    Order order;
    order.kind = Order::Kind::kRankLost;
    order.lost = lost;
    host_->follow(order);
  });
}

Result<std::string> LocalController::drain_host(const std::string& host) {
  return books_.drain_host(host);
}

void LocalController::finish() {
  const Patience patience{[this] { return host_->is_wanted(); },
                          [this](std::vector<pollfd>* fds) { host_->add_to_poll(fds); }};
  books_.close_outputs(patience);
  books_.close_store();
  if (failed_) {  // has been said, and is nobody else's fault
    books_.drain_console(patience);
    exit_code_ = kLauncherFailure;
    return;
  }
  JobEnd job = books_.end();
  const HostEnd end = host_->end();
  if (books_.elastic() == nullptr && !end.lost_by_us && end.lost_joined) {
    job.lost = books_.lost();
    job.lost_inside = end.lost_inside;
  }
  job.cause = end.cause;
  job.signal = end.signal;
  exit_code_ = books_.conclude(std::move(job), patience);
}

}  // namespace rueda::launcher
