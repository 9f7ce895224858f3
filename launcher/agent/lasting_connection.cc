#include "launcher/agent/lasting_connection.h"

#include <algorithm>
#include <sstream>

#include "collectives/host/event_fd.h"
#include "launcher/hosts/limits.h"

namespace rueda::launcher {
namespace {

constexpr std::chrono::milliseconds kPause{50};  // between two tries
constexpr std::chrono::milliseconds kLongPause{500};
// Of an answer. TCP says again what a network has dropped after one second, then two, then four: a
// new try is sooner. They grow, for networks that take their time.
constexpr std::chrono::milliseconds kFirstTry{500};
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
  secret_ = setup_.assign.secret();
}

LastingConnection::~LastingConnection() {
  stop_seeking();
  for (std::thread& one : retired_) one.join();
}

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
  if (message.has_heartbeat()) message.mutable_heartbeat()->set_received(received_);
  if (!secret_.empty()) sent_.push_back(message);
  if (is_known_) return connection_->send(std::move(message));
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

void LastingConnection::open_output(int) { open_stream_of_output(); }

void LastingConnection::open_stream_of_output() {
  connection_->open_output(setup_.assign.host_index());
  output_is_open_ = true;
}

void LastingConnection::output(MemberId member, int stream, std::string_view bytes) {
  const Key key(member, stream);
  if (output_is_open_) {
    send_output(member, stream, bytes);
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

// Piece by piece: each is one message, and has a number.
void LastingConnection::send_output(MemberId member, int stream, std::string_view bytes) {
  do {
    const std::string_view piece = bytes.substr(0, kMaxOutputPiece);
    bytes.remove_prefix(piece.size());
    if (!secret_.empty()) sent_output_.push_back({Key(member, stream), std::string(piece)});
    connection_->output(member, stream, piece);
  } while (!bytes.empty());
}

size_t LastingConnection::output_waiting() const {
  if (output_is_open_) return connection_->output_waiting();
  return setup_.has_next ? 0 : output_bytes_;  // it is soon over: nothing need be dropped
}

void LastingConnection::finish_output() {
  finishing_since_ = Clock::now();
  if (output_is_open_) connection_->finish_output();
}

bool LastingConnection::close(std::chrono::milliseconds limit) {
  stop_seeking();
  const bool closed = connection_ == nullptr || connection_->close(limit);
  return closed && still_retiring_ == 0;
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
  if (!is_known_) drop_if_unanswered();
  if (connection_ == nullptr) return {};
  const bool ended = connection_->gone();
  std::vector<control::ControllerMessage> messages = connection_->take();
  heard_ = heard_ || !messages.empty();
  std::erase_if(messages, [this](auto& message) { return take_own(&message); });
  if (doubted_) replace_doubted();
  if (!ended || gone_ || connection_ == nullptr) return messages;
  if (goodbye_ || setup_.ticket.addresses.empty()) {
    gone_ = true;
    why_ = connection_->why_gone();
    return messages;
  }
  std::unique_ptr<ControlConnection> old;
  output_is_open_ = false;
  {
    const std::lock_guard lock(mutex_);
    is_known_ = false;
    old = std::move(connection_);
  }
  const bool heard = std::exchange(heard_, false);
  if (heard) since_ = Clock::now();
  begin_seeking(heard);
  return messages;
}

// True: nobody else is to see it.
bool LastingConnection::take_own(control::ControllerMessage* message) {
  if (message->has_resumed()) {
    resume(message->resumed());
    return true;
  }
  if (message->has_taken_over()) {
    adopt(message->taken_over());
    return false;
  }
  if (message->has_heartbeat()) {
    const control::Heartbeat& beat = message->heartbeat();
    for (; first_output_ < beat.output_received() && !sent_output_.empty(); ++first_output_)
      sent_output_.pop_front();
    const std::lock_guard lock(mutex_);
    for (; first_sent_ < beat.received() && !sent_.empty(); ++first_sent_) sent_.pop_front();
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    ++received_;
  }
  if (message->has_keep_record()) {
    serial_ = message->keep_record().serial();
    record_ = std::move(*message->mutable_keep_record()->mutable_record());
    host_address_ = message->keep_record().address();
    control::AgentMessage kept;
    kept.mutable_record_kept()->set_serial(serial_);
    send(std::move(kept));
  } else if (message->has_begin_epoch()) {
    ranks_.clear();
    for (const uint64_t member : message->begin_epoch().members())
      ranks_.emplace(member, static_cast<Rank>(ranks_.size()));
  } else if (message->has_goodbye()) {
    goodbye_ = true;
  }
  return false;
}

// ---- between two connections --------------------------------------------------------------------

// Nothing has been heard on it; what is behind it may be reached by another.
void LastingConnection::doubt() {
  if (doubted_ || !is_known_ || gone_ || setup_.ticket.addresses.empty() || secret_.empty()) return;
  doubted_ = true;
  heard_ = false;
  since_ = Clock::now();
  begin_seeking(true);
}

// Unless it has spoken again meanwhile.
void LastingConnection::replace_doubted() {
  const std::lock_guard lock(mutex_);
  if (heard_) {
    doubted_ = false;
    stop_ = true;  // it is not waited for: it may be about to connect
    changed_.notify_all();
    return retire(std::move(found_));
  }
  if (found_ == nullptr) return;
  doubted_ = false;
  is_known_ = false;
  output_is_open_ = false;
  retire(std::move(connection_));
  host::ring_event_fd(wake_.get());  // to introduce ourselves
}

// Its end may take as long as TCP takes to give up.
void LastingConnection::retire(std::unique_ptr<ControlConnection> old) {
  if (old == nullptr) return;
  ++still_retiring_;
  retired_.emplace_back([this, old = std::move(old)]() mutable {
    old.reset();
    --still_retiring_;
  });
}

void LastingConnection::begin_seeking(bool at_once) {
  doubted_ = connection_ != nullptr;
  {
    const std::lock_guard lock(mutex_);
    stop_ = false;
    if (found_ != nullptr) return host::ring_event_fd(wake_.get());
    if (std::exchange(is_seeking_, true)) return;
  }
  if (seeker_.joinable()) seeker_.join();  // it has ended, or is about to
  seeker_ = std::thread([this, at_once] { seek(at_once); });
}

// On a thread of its own.
void LastingConnection::seek(bool at_once) {
  std::chrono::milliseconds answer = kFirstTry;
  for (bool tries = at_once;; tries = true) {
    std::unique_ptr<ControlConnection> found;
    if (tries) {
      auto one = ControlConnection::connect(setup_.ticket, std::chrono::seconds(0), answer);
      answer = std::min(2 * answer, ControlConnection::kAnswer);
      if (one.ok()) found = std::move(one).value();
    }
    std::unique_lock lock(mutex_);
    if (found != nullptr && !stop_) {
      found_ = std::move(found);
      host::ring_event_fd(wake_.get());
    }
    const auto pause = Clock::now() - since_.load() < kHurry ? kPause : kLongPause;
    if (found_ == nullptr && !changed_.wait_for(lock, pause, [&] { return stop_; })) continue;
    is_seeking_ = false;
    return;
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
      finishing_since_ && now - std::max(*finishing_since_, since_.load()) > kPatienceAtEnd;
  if (!at_end && now - since_.load() < setup_.patience) return;
  std::ostringstream text;
  if (setup_.has_next)
    text << "the job's controller is gone, and no other has come within " << setup_.patience.count()
         << " s (--driver-timeout)";
  else
    text << "the connection to the job's controller has ended, and no other could be made for "
         << setup_.patience.count() << " s (--silence-timeout)";
  why_ = text.str();
  gone_ = true;
}

// A network may have taken us there and no further.
void LastingConnection::drop_if_unanswered() {
  give_up_if_due();
  if (gone_ || connection_->gone() || Clock::now() - introduced_ < kAnswer) return;
  {
    const std::lock_guard lock(mutex_);
    retire(std::move(connection_));
  }
  begin_seeking(true);
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
  introduced_ = Clock::now();
  before_registering_ = sent_.size();
  connection_->send(registration());
}

// The same controller. It has what we have said up to there.
void LastingConnection::resume(const control::Resumed& there) {
  {
    const std::lock_guard lock(mutex_);
    for (; first_sent_ < there.received() && !sent_.empty(); ++first_sent_) sent_.pop_front();
    for (const control::AgentMessage& message : sent_) connection_->send(message);
    lines_.clear();  // they are among these
    is_known_ = true;
  }
  for (; first_output_ < there.output_received() && !sent_output_.empty(); ++first_output_)
    sent_output_.pop_front();
  open_stream_of_output();
  for (const Written& one : sent_output_)
    connection_->output(one.key.first, one.key.second, one.bytes);
  pour_output();
  if (finishing_since_) connection_->finish_output();
}

// Another controller, who has read what has become of our members. What it says is numbered anew,
// as is what we say.
void LastingConnection::adopt(const control::TakenOver& there) {
  {
    const std::lock_guard lock(mutex_);
    ++session_;
    secret_ = there.secret();
    received_ = first_sent_ = 0;
    std::deque<control::AgentMessage> since;  // we have registered
    for (size_t at = before_registering_; at < sent_.size(); ++at) {
      if (member_of(sent_[at]) != kNoMember) since.push_back(std::move(sent_[at]));
    }
    for (control::AgentMessage& line : lines_) since.push_back(std::move(line));
    lines_.clear();
    sent_ = std::move(since);
    for (const control::AgentMessage& message : sent_) connection_->send(message);
    is_known_ = true;
  }
  // Not before: it must know by then whose output it is.
  sent_output_.clear();
  first_output_ = 0;
  open_stream_of_output();
  // A line of which the last controller had the beginning comes whole.
  for (const auto& [key, begun] : begun_lines_) {
    if (!begun.empty()) send_output(key.first, key.second, begun);
  }
  pour_output();
  if (finishing_since_) connection_->finish_output();
}

control::AgentMessage LastingConnection::registration() const {
  control::AgentMessage message = setup_.registration;
  auto* me = message.mutable_register_();
  me->set_host_index(setup_.assign.host_index());
  if (!secret_.empty()) {
    me->mutable_resumes()->set_secret(secret_);
    me->mutable_resumes()->set_received(received_);
  }
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
  for (const auto& [member, told] : told_) *holds->add_told() = told;
  return message;
}

// What was written while there was no connection.
void LastingConnection::pour_output() {
  for (const Written& one : std::exchange(output_, {}))
    output(one.key.first, one.key.second, one.bytes);
  output_bytes_ = 0;
  if (dropped_ == 0) return;
  control::AgentMessage message;
  message.mutable_say()->set_text(std::to_string(std::exchange(dropped_, 0)) +
                                  " bytes that ranks wrote while there was no controller were "
                                  "dropped");
  send(std::move(message));
}

}  // namespace rueda::launcher
