// An agent's end of the connection to its controller: gRPC over TLS.
//
// What arrives is queued; the agent's loop takes it when fd() is readable. Owns gRPC's threads.
// Threads: one, except where said.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/hosts/ticket.h"
#include "launcher/hosts/wire.h"
#include "launcher/job/member.h"

namespace rueda::launcher {

class ControlConnection {
 public:
  static constexpr std::chrono::milliseconds kAnswer{3000};

  // Tries the ticket's addresses, all at once, and takes the first that answers as the controller
  // of this job; one that is cut off holds up no other. answer: how long each try waits for one.
  // The error is a table of what was tried.
  static Result<std::unique_ptr<ControlConnection>> connect(
      const Ticket& ticket, std::chrono::seconds limit, std::chrono::milliseconds answer = kAnswer);
  virtual ~ControlConnection() = default;

  // The controller's address that was taken.
  virtual const std::string& address() const = 0;
  virtual int fd() const = 0;
  // The next take() begins with these.
  virtual void put_back(std::vector<control::ControllerMessage> messages) = 0;
  // `gone`: the connection has ended; stays set, with the reason.
  virtual std::vector<control::ControllerMessage> take() = 0;
  virtual bool gone() const = 0;
  virtual std::string why_gone() const = 0;

  virtual void send(control::AgentMessage message) = 0;  // from any thread
  // Everything sent so far has left us.
  virtual bool idle() const = 0;
  // Opens the stream of output, after registering.
  virtual void open_output(int host_index) = 0;
  // A member's bytes; empty: the end of this stream.
  virtual void output(MemberId member, int stream, std::string_view bytes) = 0;
  virtual size_t output_waiting() const = 0;
  // Ends the stream of output once everything is sent. Then output_done() becomes true.
  virtual void finish_output() = 0;
  virtual bool output_done() const = 0;
  // Ends the calls. False: within this time they have not ended, and the destructor would wait on.
  virtual bool close(std::chrono::milliseconds limit) = 0;

  // lasting_connection.h: it goes on at another controller, after a time without any.
  virtual bool lasts() const { return false; }
  virtual bool seeks() const { return false; }
  virtual int session() const { return 0; }
  // Nothing has been heard for a while, and somebody should have been: another is tried beside it.
  virtual void doubt() {}
};

}  // namespace rueda::launcher
