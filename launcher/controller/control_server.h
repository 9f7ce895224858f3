// The controller's end of the connections to its agents: gRPC over TLS.
//
// Owns:    the listening sockets, one thread that accepts, gRPC's threads. What arrives is queued;
//          the controller's loop takes it when fd() is readable.
// Safety:  a connection is nothing until TLS has checked the job's certificate on both sides,
//          within kHandshakeLimit; a stream is nothing until its first message has brought the
//          token. At most kMaxStrangers connections are accepted within kHandshakeLimit, or what
//          the job's hosts need; the rest waits in the kernel. Once all agents are there nothing
//          listens any more, until another host is invited, or one's connection has ended: who goes
//          on then must have the secret that this one agent was given, besides all the rest.
// Threads: every member from any thread; stop() from one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "launcher/controller/certificates.h"
#include "launcher/hosts/addresses.h"
#include "launcher/hosts/wire.h"

namespace rueda::launcher {

struct AgentEvent {
  // kResumed: a connection that had ended, or seemed to, was made again, and nothing is lost.
  enum class Kind { kRegistered, kResumed, kMessage, kOutput, kGone };
  Kind kind = Kind::kGone;
  int host = 0;
  control::AgentMessage message;  // of kRegistered, kMessage
  control::OutputMessage output;  // of kOutput
  std::string text;               // of kGone: why
};

class ControlServer {
 public:
  struct Setup {
    Certificates certificates;
    std::string token;
    std::string version;
    std::vector<std::string> hosts;      // names, in order
    std::vector<std::string> addresses;  // to listen on
    int port = 0;                        // 0: of the kernel's choice, one for each address
    // Instead, sockets that have their addresses already.
    std::vector<ListeningSocket> bound = {};
    // Agents of a job whose controller was killed come (Register.holds), and nobody else at first.
    bool takes_over = false;
    // An agent whose connection has ended may go on over another; until then what it is sent waits.
    bool resumes = false;
  };
  // Fails when none of the addresses can be listened on.
  static Result<std::unique_ptr<ControlServer>> start(Setup setup);
  virtual ~ControlServer() = default;

  // "10.0.0.1:4711", where agents can try.
  virtual const std::vector<std::string>& addresses() const = 0;
  virtual int fd() const = 0;
  virtual std::vector<AgentEvent> take() = 0;
  virtual void send(int host, control::ControllerMessage message) = 0;
  // Sends a sign of life to every agent that takes what it is sent.
  virtual void beat() = 0;
  // While held, output stays where it is: with the agents, then with the ranks.
  virtual void hold_output(bool held) = 0;
  virtual void stop_listening() = 0;
  // Does nothing while it listens. Other ports than before where the kernel chooses.
  virtual Status listen() = 0;
  // While such an agent is awaited: on sockets that have their addresses already, or as listen().
  virtual Status listen_for_return(std::vector<ListeningSocket> bound) = 0;
  virtual void end_return() = 0;
  // It is not waited for any more: a host that was lost, or is let go.
  virtual void forget_host(int host) = 0;
  // One more place, with the next number.
  virtual void add_host(const std::string& name) = 0;
  // From now on others may come, too.
  virtual void taken_over() = 0;
  // Ends every stream.
  virtual void stop() = 0;
};

}  // namespace rueda::launcher
