// A connection to the controller of an elastic job that outlives it: where the controller is
// killed, the next one is sought, where the last one said that it would listen.
//
//   connected ──its end, no goodbye──> seeking ──found──> connected: who we are, what we keep, what
//                                         │                 has become of our members; the output
//                                         └─patience──> gone for good
//
// Meanwhile the ranks go on. What they write is kept up to kMostOutput, and what is dropped is
// told; lines for the user up to kMostLines. What is of the moment (signs of life, bytes of the
// store) is not kept: its owner sends it anew when session() has changed.
//
// Owns its connection and a thread that seeks. Threads: as ControlConnection.
#pragma once

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
  bool idle() const override { return connection_ != nullptr && connection_->idle(); }
  void open_output(int host_index) override;
  void output(MemberId member, int stream, std::string_view bytes) override;
  size_t output_waiting() const override;
  void finish_output() override;
  bool output_done() const override { return output_is_open_ && connection_->output_done(); }
  bool close(std::chrono::milliseconds limit) override;
  bool lasts() const override { return true; }
  bool seeks() const override { return connection_ == nullptr && !gone_; }
  int session() const override { return session_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<MemberId, int>;  // of a member, its stream
  LastingConnection(std::unique_ptr<ControlConnection> first, Setup setup, UniqueFd wake);

  void remember(const control::AgentMessage& message);
  void forget_oldest();
  void seek(bool at_once);
  void stop_seeking();
  void give_up_if_due();
  void introduce();
  control::AgentMessage registration() const;
  void pour_output();
  void take_own(control::ControllerMessage* message);

  Setup setup_;
  const UniqueFd wake_;  // somebody was found
  std::string address_;
  std::unique_ptr<ControlConnection> connection_;  // null while seeking; send() holds mutex_
  bool output_is_open_ = false, gone_ = false, goodbye_ = false;
  std::string why_;
  int session_ = 0;
  bool heard_ = true;        // something, from this controller
  Clock::time_point since_;  // we seek; one that says nothing does not count
  std::optional<Clock::time_point> finishing_since_;

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
  std::deque<Written> output_;
  std::map<Key, std::string> begun_lines_;  // of what was sent
  size_t output_bytes_ = 0, dropped_ = 0;

  std::mutex mutex_;  // of connection_ for other threads, told_, lines_, and what follows
  std::condition_variable changed_;
  bool stop_ = false;
  std::unique_ptr<ControlConnection> found_;
  std::thread seeker_;
};

}  // namespace rueda::launcher
