// A connection to the controller of a job that outlives what it is made of.
//
//   connected ──its end, no goodbye──> seeking ──found──> introduced ──> Resumed, or TakenOver
//       │                               │  ^                 │
//       └─silence: one beside it────────┘  └──ended, silent──┘
//                                       └─patience──> gone for good
//
//   Resumed     the same controller goes on where it was
//   TakenOver   another one hears who we are and what we keep
//
// Where the controller lives a lost connection costs nothing: each message has a number
// (proto/control.proto: Resumes), and what the other side lacks is said again over the next. Where
// it was killed the next controller is sought, where the last one said that it would listen, and
// told what has become of our members; the output goes there. (Of an elastic job; one of fixed size
// has no next one.)
//
// Meanwhile the ranks go on. What they write is kept up to kMostOutput, and what is dropped is
// told; where no next controller may come no more is taken from them before that. Lines for the
// user are kept up to kMostLines. What is of the moment (signs of life, bytes of the store) is not
// kept for another controller: its owner sends it anew when session() has changed.
//
// Owns its connection, a thread that seeks, and those that wait for the end of connections which
// were given up. Threads: as ControlConnection.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/base/unique_fd.h"
#include "launcher/agent/control_connection.h"

namespace rueda::launcher {

class LastingConnection : public ControlConnection {
 public:
  static constexpr size_t kMostOutput = size_t{4} << 20;
  static constexpr size_t kMostLines = 1000;
  static constexpr size_t kMostEnded = 1000;  // members of which is remembered how they ended

  struct Setup {
    Ticket ticket;
    control::AgentMessage registration;  // as the first controller had it
    control::Assign assign;
    std::chrono::duration<double> patience;
    bool has_next = true;  // another controller follows one that is killed
  };
  static Result<std::unique_ptr<ControlConnection>> make(std::unique_ptr<ControlConnection> first,
                                                         Setup setup);
  ~LastingConnection() override;

  const std::string& address() const override { return address_; }
  int fd() const override;
  void put_back(std::vector<control::ControllerMessage> messages) override;
  std::vector<control::ControllerMessage> take() override;
  bool gone() const override { return gone_; }
  std::string why_gone() const override { return why_; }
  void send(control::AgentMessage message) override;
  bool idle() const override { return is_known_ && connection_->idle(); }
  void open_output(int host_index) override;
  void output(MemberId member, int stream, std::string_view bytes) override;
  size_t output_waiting() const override;
  void finish_output() override;
  bool output_done() const override { return output_is_open_ && connection_->output_done(); }
  bool close(std::chrono::milliseconds limit) override;
  bool lasts() const override { return setup_.has_next; }
  bool seeks() const override { return !is_known_ && !gone_; }
  int session() const override { return session_; }
  void doubt() override;

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<MemberId, int>;  // of a member, its stream
  LastingConnection(std::unique_ptr<ControlConnection> first, Setup setup, UniqueFd wake);

  void remember(const control::AgentMessage& message);
  void forget_oldest();
  void begin_seeking(bool at_once);
  void seek(bool at_once);
  void stop_seeking();
  void give_up_if_due();
  void drop_if_unanswered();
  void replace_doubted();
  void retire(std::unique_ptr<ControlConnection> old);
  void introduce();
  void resume(const control::Resumed& there);
  void adopt(const control::TakenOver& there);
  control::AgentMessage registration() const;
  void open_stream_of_output();
  void send_output(MemberId member, int stream, std::string_view bytes);
  void pour_output();
  bool take_own(control::ControllerMessage* message);

  Setup setup_;
  const UniqueFd wake_;  // somebody was found
  std::string address_;
  std::unique_ptr<ControlConnection> connection_;  // null while seeking; send() holds mutex_
  std::atomic<bool> is_known_ = true;              // the other end has said who it is
  bool output_is_open_ = false, gone_ = false, goodbye_ = false;
  std::string why_;
  int session_ = 0;
  bool doubted_ = false;  // a connection is sought beside this one
  std::vector<std::thread> retired_;
  std::atomic<int> still_retiring_{0};
  bool heard_ = true;                     // something, from this controller
  std::atomic<Clock::time_point> since_;  // we seek; one that says nothing does not count
  std::optional<Clock::time_point> finishing_since_;
  Clock::time_point introduced_;  // over the connection that there is, where it is not known yet

  uint64_t serial_ = 0;
  std::string record_, host_address_;
  std::map<MemberId, Rank> ranks_;  // of the epoch that began last
  std::deque<std::pair<MemberId, control::AgentMessage>> told_;
  std::deque<MemberId> ended_;
  std::deque<control::AgentMessage> lines_;
  struct Written {
    Key key;
    std::string bytes;  // empty: its end
  };
  std::deque<Written> output_;              // while there is no connection
  std::deque<Written> sent_output_;         // each one message, not acknowledged
  uint64_t first_output_ = 0;               // the number of the first of these
  std::map<Key, std::string> begun_lines_;  // of what was sent
  size_t output_bytes_ = 0, dropped_ = 0;
  std::string secret_;     // for Resumes
  uint64_t received_ = 0;  // of the controller's numbered messages

  std::mutex mutex_;  // of connection_ for other threads, told_, lines_, and what follows
  std::deque<control::AgentMessage> sent_;  // not acknowledged
  uint64_t first_sent_ = 0;                 // the number of the first of these
  size_t before_registering_ = 0;           // of these
  std::condition_variable changed_;
  bool stop_ = false, is_seeking_ = false;
  std::unique_ptr<ControlConnection> found_;
  std::thread seeker_;
};

}  // namespace rueda::launcher
