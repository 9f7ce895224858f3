#include "launcher/hosts/ticket.h"

#include <algorithm>

#include "collectives/base/utf8.h"

namespace rueda::launcher {
namespace {

constexpr std::string_view kFirstWords = "rueda ticket ";
constexpr std::string_view kVersion = "2";
constexpr size_t kMaxVersion = 20;  // characters of another one that are shown
constexpr size_t kMaxAddresses = 64;
constexpr size_t kTokenDigits = 64;

Status broken(const std::string& why) {
  return invalid_argument("this is no ticket of a rueda job: " + why);
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// A line up to its '\n', taken from the front; false when there is none.
bool take_line(std::string_view* text, std::string_view* line) {
  const size_t end = text->find('\n');
  if (end == std::string_view::npos) return false;
  *line = text->substr(0, end);
  text->remove_prefix(end + 1);
  return true;
}

// A PEM block with its first and last line.
bool take_block(std::string_view* text, std::string* block) {
  if (!text->starts_with("-----BEGIN ")) return false;
  const size_t end = text->find("\n-----END ");
  if (end == std::string_view::npos) return false;
  const size_t line_end = text->find('\n', end + 1);
  if (line_end == std::string_view::npos) return false;
  *block = text->substr(0, line_end + 1);
  text->remove_prefix(line_end + 1);
  return true;
}

}  // namespace

std::string write_ticket(const Ticket& ticket) {
  std::string text(kFirstWords);
  text.append(kVersion) += "\njob " + ticket.job_id + "\ntoken " + ticket.token + "\n";
  for (const std::string& address : ticket.addresses) text += "controller " + address + "\n";
  return text + ticket.authority + ticket.certificate + ticket.private_key + kTicketEnd;
}

bool is_tickets_first_line(std::string_view line) { return line.starts_with(kFirstWords); }

Result<Ticket> read_ticket(std::string_view text) {
  if (text.size() > kMaxTicketBytes) return broken("it is too long");
  std::string_view first;
  if (!text.starts_with(kFirstWords) || !take_line(&text, &first))
    return broken("its first line is not \"rueda ticket " + std::string(kVersion) + "\"");
  const std::string_view version = first.substr(kFirstWords.size());
  if (version != kVersion) {
    return invalid_argument("this ticket is of version " + printable_text(version, kMaxVersion) +
                            ", this program reads version " + std::string(kVersion) +
                            ": use the same rueda on all hosts");
  }
  Ticket ticket;
  while (!text.starts_with("-----BEGIN ")) {
    std::string_view line;
    if (!take_line(&text, &line)) return broken("it is cut short");
    const size_t space = line.find(' ');
    const std::string_view key = line.substr(0, space);
    const std::string value(space == std::string_view::npos ? "" : line.substr(space + 1));
    if (key == "job" && !value.empty() && value.size() <= 64 && is_hex(value)) {
      ticket.job_id = value;
    } else if (key == "token" && value.size() == kTokenDigits && is_hex(value)) {
      ticket.token = value;
    } else if (key == "controller" && ticket.addresses.size() < kMaxAddresses && !value.empty()) {
      ticket.addresses.push_back(value);
    } else {
      return broken("a line that is unknown or wrong");
    }
  }
  if (!take_block(&text, &ticket.authority) || !take_block(&text, &ticket.certificate) ||
      !take_block(&text, &ticket.private_key) || text != kTicketEnd) {
    return broken("it is cut short");
  }
  if (ticket.job_id.empty() || ticket.token.empty() || ticket.addresses.empty())
    return broken("job, token or controller is missing");
  return ticket;
}

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i)
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  return differs == 0;
}

}  // namespace rueda::launcher
