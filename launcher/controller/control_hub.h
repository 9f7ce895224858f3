// Hub: what the streams of all agents share: whose place is whose, what has arrived and not been
// taken, what an agent has to be told again by its next connection.
//
// Threads: any; streams call it from gRPC's.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/controller/control_server.h"
#include "launcher/controller/control_streams.h"
#include "launcher/controller/host_line.h"

namespace rueda::launcher {

class Hub {
 public:
  Hub(const ControlServer::Setup& setup, UniqueFd wake);

  // Goes on where a connection of this agent has ended, or seems to have; else it is as any other.
  // Returns its place.
  std::optional<int> resume(const control::Register& agent, AgentStream* stream);

  // The place of an agent that has introduced itself, or why it has none.
  Result<int> admit(const control::Register& agent, AgentStream* stream);

  size_t hosts();
  void add_host(const std::string& name);
  void taken_over();

  // The host is lost, or let go: what is kept for another connection is forgotten.
  void forget_host(int host);

  // It must come over the connection of the host that it is said to be of.
  bool knows_output(const control::OutputMessage& first, const Peer& peer);

  // Returns whether the stream may read on now; else it is told with read_on(). `told`: what comes
  // with it.
  bool push(AgentEvent event, AgentStream* from, std::vector<AgentEvent> told = {});

  // `is_first`: it brings no output.
  bool push_output(control::OutputMessage message, int host, bool is_first, const Peer& peer,
                   OutputStream* from);

  std::vector<AgentEvent> take();
  void hold_output(bool held);
  void send(int host, control::ControllerMessage message);
  void beat();

  // From now on nothing is queued and no stream is held, so that each reads its end.
  void close();

  // The stream is about to be deleted.
  void forget(AgentStream* stream);
  void forget(OutputStream* stream);

  int fd() const { return wake_.get(); }

 private:
  Result<int> place_of(const std::string& name) const;
  int place_by_name(const std::string& name) const;
  // A sign of life.
  static void acknowledge(AgentStream* stream, HostLine* line);
  void add_place(const std::string& name);
  // Of a host that was in the job before us: its certificate says the number, its agent the name.
  Status make_place(int host, const std::string& name, const Peer& peer);
  void queue(AgentEvent event);

  const std::string token_, version_;
  const bool resumes_;
  std::mutex mutex_;  // of what follows; a stream's own mutex may be taken under it
  std::vector<std::string> hosts_;
  std::vector<AgentStream*> streams_;
  std::vector<HostLine> lines_;
  std::vector<bool> joined_;
  std::vector<size_t> waiting_;
  std::vector<AgentEvent> events_;
  std::vector<AgentStream*> stopped_;
  std::vector<OutputStream*> stopped_outputs_;
  size_t output_waiting_ = 0;
  bool output_held_ = false;
  bool closing_ = false;
  bool takes_over_ = false;
  const UniqueFd wake_;
};

}  // namespace rueda::launcher
