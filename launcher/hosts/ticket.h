// The ticket of a job: what an agent needs to reach the job's controller and to be believed. Pure.
//
// It goes to agents over their standard input, or as a file that only its owner can read (ruedarun
// --token-file, ruedarun join). Whoever has it can join the job; it is worth nothing afterwards.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::launcher {

// The name in the controller's certificate, whatever the address.
inline constexpr const char* kControllerName = "rueda-controller";
inline constexpr size_t kMaxTicketBytes = 64 << 10;
inline constexpr const char* kTicketEnd = "end of rueda ticket\n";

struct Ticket {
  std::string job_id;
  std::string token;                   // 64 hexadecimal digits
  std::vector<std::string> addresses;  // of the controller, "10.0.0.1:4711", best first
  std::string authority;               // PEM: who signed the controller's certificate
  std::string certificate;             // PEM: the agent's
  std::string private_key;             // PEM: the agent's
};

// Text that ends with kTicketEnd.
std::string write_ticket(const Ticket& ticket);
Result<Ticket> read_ticket(std::string_view text);
// Without its '\n'.
bool is_tickets_first_line(std::string_view line);

// Takes the same time wherever the two differ.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace rueda::launcher
