// Rows as lines of text, for a screen of so many columns. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/tools/top/rates.h"

namespace rueda::top {

struct Look {
  size_t columns = 80;
  bool utf8 = true;      // sparklines of block characters; else of ASCII
  bool by_host = false;  // rows are of hosts
};

// Which of so many rows are shown, and which one is chosen.
struct Window {
  int chosen = 0, first = 0, room = 1;

  // Whatever chosen has become: one of `count` rows, and shown.
  void keep_within(int count);
};

// The job in two to four lines, each of `columns` at most.
std::vector<std::string> heading(const Rates& rates, const Look& look);
std::string table_head(const Look& look);
std::string table_row(const Row& row, const Look& look);
// One object, in one line: what the table says, in seconds, bytes and shares of 1.
std::string rates_json(const Rates& rates);

// "12.3 ms", "1.5 GB": of six characters at most.
std::string short_time(double seconds);
std::string short_bytes(double bytes);
// As many characters as there is room; the newest value is the last.
std::string sparkline(const std::vector<double>& values, size_t room, bool utf8);
// Cut or filled up to so many columns of a terminal.
std::string fit(const std::string& text, size_t columns);

}  // namespace rueda::top
