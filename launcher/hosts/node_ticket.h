// How the nodes of a job that all run the same command (job/torch_nodes.h) come to its ticket.
//
//   node 1, 2, ...                                        node 0
//     connects to PET_MASTER_ADDR:PET_MASTER_PORT  ---->  listens until all have joined
//     both prove to hold the key (rendezvous/handshake.h)
//                                                  <----  the ticket, sealed with the key
//     joins with it, as `ruedarun join` does
//
// The ticket is sealed because the handshake does not encrypt what follows it: XSalsa20-Poly1305 of
// libsodium, under a key derived from the user's. The user's key itself never travels.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "collectives/base/status.h"
#include "launcher/hosts/proof_door.h"
#include "launcher/job/torch_nodes.h"
#include "runtime/rendezvous/job_key.h"

namespace rueda::launcher {

struct NodeDoor {
  TorchNodes nodes;
  rendezvous::JobKey key;  // of the user's file, not the job's own
};

// On node 0. Gives the ticket to nodes while it lives.
Result<ProofDoor> hand_out_ticket(const NodeDoor& door, const std::string& ticket);

// On another node: blocks until node 0 has given the ticket. Node 0 may come late, its name too:
// it is tried with growing pauses up to `limit`, and every ten seconds `say` gets a line.
// kCancelled when `stopped` says so, kDeadlineExceeded at the limit, kUnauthenticated when node 0
// holds another key or is told of another number of nodes or ranks.
Result<std::string> fetch_ticket(const NodeDoor& door, std::chrono::duration<double> limit,
                                 const std::function<void(const std::string&)>& say,
                                 const std::function<bool()>& stopped);

// Pure. What travels, and its inverse: kUnauthenticated when it was sealed with another key or is
// damaged.
std::string seal(const std::string& text, const rendezvous::JobKey& key);
Result<std::string> unseal(const std::string& sealed, const rendezvous::JobKey& key);

}  // namespace rueda::launcher
