#include "launcher/agent/lasting_connection.h"

#include <algorithm>
#include <sstream>

#include "collectives/host/event_fd.h"
#include "launcher/hosts/limits.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // between two tries
constexpr std::chrono::milliseconds kLongPause{500};
constexpr std::chrono::seconds kHurry{5};          // then pauses are long
constexpr std::chrono::seconds kPatienceAtEnd{5};  // where our ranks have ended
constexpr size_t kMostOfLine = 64 << 10;

// What the next controller must hear as well.
MemberId member_of(const control::AgentMessage& message) {
  if (message.has_rank_started()) return message.rank_started().member();
  if (message.has_rank_lost()) return message.rank_lost().member();
  if (message.has_rank_fenced()) return message.rank_fenced().member();
  if (message.has_rank_ended()) return message.rank_ended().member();
  return kNoMember;
}

}  // namespace

Result<std::unique_ptr<ControlConnection>> LastingConnection::make(
    std::unique_ptr<ControlConnection> first, Setup setup) {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd wake, host::make_event_fd());
  return std::unique_ptr<ControlConnection>(
      new LastingConnection(std::move(first), std::move(setup), std::move(wake)));
}

LastingConnection::LastingConnection(std::unique_ptr<ControlConnection> first, Setup setup,
                                     UniqueFd wake)
    : setup_(std::move(setup)),
      wake_(std::move(wake)),
      address_(first->address()),
      connection_(std::move(first)),
      host_address_(setup_.assign.address()) {
  setup_.ticket.addresses = {setup_.assign.door_addresses().begin(),
                             setup_.assign.door_addresses().end()};
}

LastingConnection::~LastingConnection() { stop_seeking(); }

int LastingConnection::fd() const {
  return connection_ != nullptr ? connection_->fd() : wake_.get();
}

void LastingConnection::put_back(std::vector<control::ControllerMessage> messages) {
  if (connection_ != nullptr) connection_->put_back(std::move(messages));
}

// ---- what is said -------------------------------------------------------------------------------

void LastingConnection::send(control::AgentMessage message) {
  const std::lock_guard lock(mutex_);
  remember(message);
  if (connection_ != nullptr) return connection_->send(std::move(message));
  if (message.has_say() && lines_.size() < kMostLines) lines_.push_back(std::move(message));
}

void LastingConnection::remember(const control::AgentMessage& message) {
  const MemberId member = member_of(message);
  if (member == kNoMember) return;
  told_.emplace_back(member, message);
  const bool failed = message.has_rank_started() && !message.rank_started().error().empty();
  if (message.has_rank_ended() || failed) ended_.push_back(member);
  if (ended_.size() > kMostEnded) forget_oldest();
}

void LastingConnection::forget_oldest() {
  const MemberId oldest = ended_.front();
  ended_.pop_front();
  std::erase_if(told_, [&](const auto& one) { return one.first == oldest; });
}

void LastingConnection::open_output(int host_index) {
  connection_->open_output(host_index);
  output_is_open_ = true;
}

void LastingConnection::output(MemberId member, int stream, std::string_view bytes) {
  const Key key(member, stream);
  if (output_is_open_) {
    connection_->output(member, stream, bytes);
    if (bytes.empty()) {
      begun_lines_.erase(key);
      return;
    }
    const size_t end = bytes.find_last_of("\r\n");
    std::string& begun = begun_lines_[key];
    if (end != std::string_view::npos) begun.clear();
    begun += bytes.substr(end == std::string_view::npos ? 0 : end + 1);
    if (begun.size() > kMostOfLine) begun.clear();
    return;
  }
  if (output_bytes_ + bytes.size() > kMostOutput) {
    dropped_ += bytes.size();
    return;
  }
  output_bytes_ += bytes.size();
  output_.push_back({key, std::string(bytes)});
}

size_t LastingConnection::output_waiting() const {
  return output_is_open_ ? connection_->output_waiting() : 0;
}

void LastingConnection::finish_output() {
  finishing_since_ = Clock::now();
  if (output_is_open_) connection_->finish_output();
}

bool LastingConnection::close(std::chrono::milliseconds limit) {
  stop_seeking();
  return connection_ == nullptr || connection_->close(limit);
}

// ---- what is heard ------------------------------------------------------------------------------

std::vector<control::ControllerMessage> LastingConnection::take() {
  if (connection_ == nullptr) {
    host::clear_event_fd(wake_.get());
    introduce();
    if (connection_ == nullptr) {
      give_up_if_due();
      return {};
    }
  }
  const bool ended = connection_->gone();
  std::vector<control::ControllerMessage> messages = connection_->take();
  heard_ = heard_ || !messages.empty();
  for (control::ControllerMessage& message : messages) take_own(&message);
  if (!ended || gone_) return messages;
  if (goodbye_ || setup_.ticket.addresses.empty()) {
    gone_ = true;
    why_ = connection_->why_gone();
    return messages;
  }
  std::unique_ptr<ControlConnection> old;
  output_is_open_ = false;
  {
    const std::lock_guard lock(mutex_);
    old = std::move(connection_);
    stop_ = false;
  }
  const bool heard = std::exchange(heard_, false);
  if (heard) since_ = Clock::now();
  seeker_ = std::thread([this, heard] { seek(heard); });
  return messages;
}

void LastingConnection::take_own(control::ControllerMessage* message) {
  if (message->has_keep_record()) {
    serial_ = message->keep_record().serial();
    record_ = std::move(*message->mutable_keep_record()->mutable_record());
    host_address_ = message->keep_record().address();
    control::AgentMessage kept;
    kept.mutable_record_kept()->set_serial(serial_);
    send(std::move(kept));
  } else if (message->has_taken_over()) {
    // Not before: it must know by then whose output it is.
    open_output(setup_.assign.host_index());
    pour_output();
    if (finishing_since_) connection_->finish_output();
  } else if (message->has_begin_epoch()) {
    ranks_.clear();
    for (const uint64_t member : message->begin_epoch().members())
      ranks_.emplace(member, static_cast<Rank>(ranks_.size()));
  } else if (message->has_goodbye()) {
    goodbye_ = true;
  }
}

// ---- between two controllers --------------------------------------------------------------------

// On a thread of its own.
void LastingConnection::seek(bool at_once) {
  for (bool tries = at_once;; tries = true) {
    std::unique_ptr<ControlConnection> found;
    if (tries) {
      auto one = ControlConnection::connect(setup_.ticket, std::chrono::seconds(0));
      if (one.ok()) found = std::move(one).value();
    }
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (found != nullptr) {
      found_ = std::move(found);
      host::ring_event_fd(wake_.get());
      return;
    }
    const auto pause = Clock::now() - since_ < kHurry ? kPause : kLongPause;
    if (changed_.wait_for(lock, pause, [&] { return stop_; })) return;
  }
}

void LastingConnection::stop_seeking() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (seeker_.joinable()) seeker_.join();
}

void LastingConnection::give_up_if_due() {
  if (gone_) return;
  const auto now = Clock::now();
  const bool at_end =
      finishing_since_ && now - std::max(*finishing_since_, since_) > kPatienceAtEnd;
  if (!at_end && now - since_ < setup_.patience) return;
  std::ostringstream text;
  text << "the job's controller is gone, and no other has come within " << setup_.patience.count()
       << " s (--driver-timeout)";
  why_ = text.str();
  gone_ = true;
}

void LastingConnection::introduce() {
  {
    const std::lock_guard lock(mutex_);
    if (found_ == nullptr || gone_) return;
  }
  stop_seeking();
  const std::lock_guard lock(mutex_);
  connection_ = std::move(found_);
  address_ = connection_->address();
  ++session_;
  connection_->send(registration());
  for (const auto& [member, message] : told_) connection_->send(message);
  for (control::AgentMessage& line : lines_) connection_->send(std::move(line));
  lines_.clear();
}

control::AgentMessage LastingConnection::registration() const {
  control::AgentMessage message = setup_.registration;
  auto* me = message.mutable_register_();
  me->set_host_index(setup_.assign.host_index());
  auto* holds = me->mutable_holds();
  holds->set_host_name(setup_.assign.host_name());
  holds->set_serial(serial_);
  holds->set_record(record_);
  holds->set_address(host_address_);
  for (const auto& [member, told] : told_) {
    if (!told.has_rank_started()) continue;
    auto* one = holds->add_members();
    one->set_member(member);
    const auto rank = ranks_.find(member);
    one->set_rank(rank == ranks_.end() ? told.rank_started().rank() : rank->second);
    one->set_pid(told.rank_started().pid());
    one->set_ended(std::ranges::count(ended_, member) != 0);
  }
  return message;
}

// A line of which the last controller had the beginning comes whole.
void LastingConnection::pour_output() {
  for (const auto& [key, begun] : begun_lines_) {
    if (!begun.empty()) connection_->output(key.first, key.second, begun);
  }
  for (const Written& one : std::exchange(output_, {}))
    output(one.key.first, one.key.second, one.bytes);
  output_bytes_ = 0;
  if (dropped_ == 0) return;
  control::AgentMessage message;
  message.mutable_say()->set_text(std::to_string(std::exchange(dropped_, 0)) +
                                  " bytes that ranks wrote while there was no controller were "
                                  "dropped");
  connection_->send(std::move(message));
}

}  // namespace rueda::launcher
