#include "launcher/tools/top/screen.h"

#include <langinfo.h>
#define NCURSES_NOMACROS
#include <ncurses.h>

#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>

#include "collectives/base/printable_lines.h"
#include "launcher/observe/status_socket.h"
#include "launcher/observe/vitals_json.h"
#include "launcher/tools/top/table.h"

namespace rueda::top {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kEvery{1};
constexpr short kBad = 1, kHead = 2;

// Between its construction and its destruction the terminal is ncurses'.
class Terminal {
 public:
  Terminal() {
    // An unknown terminal is an error here, and no exit as with initscr.
    screen_ = newterm(nullptr, stdout, stdin);
    if (screen_ == nullptr) return;
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, true);
    set_escdelay(50);
    const char* const plain = std::getenv("NO_COLOR");
    colors_ = (plain == nullptr || *plain == '\0') && has_colors();
    if (colors_) {
      start_color();
      use_default_colors();
      init_pair(kBad, COLOR_RED, -1);
      init_pair(kHead, COLOR_CYAN, -1);
    }
  }
  ~Terminal() {
    if (screen_ == nullptr) return;
    endwin();
    delscreen(screen_);
  }
  bool ok() const { return screen_ != nullptr; }
  attr_t bad() const { return A_BOLD | (colors_ ? static_cast<attr_t>(COLOR_PAIR(kBad)) : 0); }
  attr_t head() const { return A_REVERSE | (colors_ ? static_cast<attr_t>(COLOR_PAIR(kHead)) : 0); }

 private:
  SCREEN* screen_ = nullptr;
  bool colors_ = false;
};

class View {
 public:
  explicit View(std::string job) : job_(std::move(job)) {
    look_.utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  }

  // False: the job has ended, or does not answer, and why_ says which.
  bool ask() {
    const auto answer = launcher::ask_job(job_, std::string(launcher::kVitalsQuestion));
    if (!answer.ok()) return why_ = answer.status().message(), false;
    const auto sample = parse_sample(answer.value());
    if (!sample.ok()) return why_ = sample.status().message(), false;
    rates_.take(sample.value());
    return true;
  }
  const std::string& why() const { return why_; }

  void draw(const Terminal& terminal) {
    look_.columns = static_cast<size_t>(std::max(20, COLS));
    erase();
    int line = 0;
    for (const std::string& text : heading(rates_, look_)) {
      const bool bad = text.starts_with("! ") || text.starts_with("slowest: ");
      put(line++, text, bad ? terminal.bad() : A_NORMAL);
    }
    if (told_) {
      draw_story(line, terminal);
    } else {
      draw_table(line, terminal);
    }
    refresh();
  }

  // False: the user has had enough.
  bool press(int key) {
    const int page = std::max(1, window_.room - 1);
    switch (key) {
      case 'q': return false;
      case 27:  // escape
      case KEY_LEFT:
      case KEY_BACKSPACE: told_.reset(); break;
      case 's':
        order_ =
            static_cast<Order>((static_cast<int>(order_) + 1) % static_cast<int>(Order::kOrders));
        break;
      case 'h': look_.by_host = !look_.by_host; break;
      case KEY_UP: told_ ? --scroll_ : --window_.chosen; break;
      case KEY_DOWN: told_ ? ++scroll_ : ++window_.chosen; break;
      case KEY_PPAGE: (told_ ? scroll_ : window_.chosen) -= page; break;
      case KEY_NPAGE: (told_ ? scroll_ : window_.chosen) += page; break;
      case KEY_HOME: (told_ ? scroll_ : window_.chosen) = 0; break;
      case KEY_END: (told_ ? scroll_ : window_.chosen) = 1 << 20; break;
      case '\n':
      case '\r':
      case KEY_ENTER: open_story(); break;
      default: break;
    }
    return true;
  }

 private:
  void put(int line, const std::string& text, attr_t how) {
    if (line >= LINES) return;
    attr_on(how, nullptr);
    mvaddstr(line, 0, fit(text, look_.columns).c_str());
    attr_off(how, nullptr);
  }

  void draw_table(int line, const Terminal& terminal) {
    rows_ = look_.by_host ? fold_by_host(rates_.rows()) : rates_.rows();
    sort_rows(&rows_, order_);
    put(line++, table_head(look_), terminal.head());
    window_.room = std::max(1, LINES - line - 1);
    const int count = static_cast<int>(rows_.size());
    window_.keep_within(count);
    for (int i = window_.first; i < std::min(count, window_.first + window_.room); ++i) {
      const Row& row = rows_[static_cast<size_t>(i)];
      const bool bad = row.late >= 0.1 || row.stalled > 0 || row.state.starts_with("dead");
      put(line++, table_row(row, look_),
          (bad ? terminal.bad() : A_NORMAL) | (i == window_.chosen ? A_REVERSE : A_NORMAL));
    }
    std::string help = std::string("q quit  s sort (") + name_of(order_) + ")  h " +
                       (look_.by_host ? "ranks" : "hosts") + "  enter details";
    if (count > window_.room)
      help += "  " + std::to_string(window_.first + 1) + "-" +
              std::to_string(std::min(count, window_.first + window_.room)) + " of " +
              std::to_string(count);
    put(LINES - 1, help, A_DIM);
  }

  void open_story() {
    if (told_ && !told_text_.empty()) return ask_story();
    if (rows_.empty()) return;
    const Row row = rows_[static_cast<size_t>(
        std::clamp<int>(window_.chosen, 0, static_cast<int>(rows_.size()) - 1))];
    if (look_.by_host) {  // its ranks
      look_.by_host = false;
      const auto first = std::find_if(rates_.rows().begin(), rates_.rows().end(),
                                      [&](const Row& one) { return one.host == row.host; });
      order_ = Order::kRank;
      window_.chosen = static_cast<int>(first - rates_.rows().begin());
      return;
    }
    told_ = row.rank;
    scroll_ = 0;
    ask_story();
  }

  void ask_story() {
    const auto answer =
        launcher::ask_job(job_, std::string(launcher::kRankQuestion) + std::to_string(*told_));
    told_text_ = answer.ok() ? answer.value() : answer.status().message();
  }

  void draw_story(int line, const Terminal& terminal) {
    put(line++, "rank " + std::to_string(*told_), terminal.head());
    std::istringstream in(printable_lines(told_text_));
    std::vector<std::string> lines;
    for (std::string text; std::getline(in, text);) lines.push_back(text);
    window_.room = std::max(1, LINES - line - 1);
    scroll_ = std::clamp(scroll_, 0, std::max(0, static_cast<int>(lines.size()) - window_.room));
    for (int i = scroll_; i < std::min(static_cast<int>(lines.size()), scroll_ + window_.room); ++i)
      put(line++, lines[static_cast<size_t>(i)], A_NORMAL);
    put(LINES - 1, "escape back  enter anew  up, down scroll  q quit", A_DIM);
  }

  const std::string job_;
  std::string why_;
  Rates rates_;
  Look look_;
  Order order_ = Order::kRank;
  std::vector<Row> rows_;  // as they are shown
  Window window_;
  int scroll_ = 0;
  std::optional<Rank> told_;  // whose story is shown
  std::string told_text_;
};

}  // namespace

int show(const std::string& job) {
  std::setlocale(LC_ALL, "");
  View view(job);
  std::string end;
  {
    const Terminal terminal;
    if (!terminal.ok()) return -1;
    for (Clock::time_point due = Clock::now();;) {
      if (Clock::now() >= due) {
        if (!view.ask()) {
          end = view.why();
          break;
        }
        due = Clock::now() + kEvery;
      }
      view.draw(terminal);
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(due - Clock::now());
      timeout(static_cast<int>(std::max<int64_t>(0, left.count())));
      const int key = getch();
      if (key != ERR && !view.press(key)) break;
    }
  }
  if (!end.empty())
    std::printf("the job has ended, or its launcher does not answer any more: %s\n", end.c_str());
  return 0;
}

}  // namespace rueda::top
