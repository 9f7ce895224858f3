#include "collectives/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

namespace rueda::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kTrace: return spdlog::level::trace;
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
    case Level::kFatal: return spdlog::level::critical;
  }
  return spdlog::level::warn;
}

Level parse_level(const std::string& text) {
  if (text == "trace") return Level::kTrace;
  if (text == "debug") return Level::kDebug;
  if (text == "info") return Level::kInfo;
  if (text == "error") return Level::kError;
  if (text == "fatal") return Level::kFatal;
  return Level::kWarning;
}

// The logger outlives every thread on purpose: a coordinator may log while the process exits.
struct State {
  std::mutex mutex;
  std::string who = "rueda";
  std::shared_ptr<spdlog::logger> logger =
      std::make_shared<spdlog::logger>("rueda", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::atomic<Level> level{Level::kWarning};
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

}  // namespace

void init_log(const std::string& level, const std::string& who, bool hide_time) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.who = who;
  s.level.store(parse_level(level), std::memory_order_relaxed);
  s.logger->set_level(spdlog::level::trace);
  s.logger->set_pattern(hide_time ? "[%L] %v" : "[%Y-%m-%d %H:%M:%S.%e] [%L] %v");
  s.logger->flush_on(spdlog::level::trace);
}

bool enabled(Level level) { return level >= state().level.load(std::memory_order_relaxed); }

void write(Level level, const char* component, const std::string& text) {
  State& s = state();
  std::string who;
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    who = s.who;
  }
  s.logger->log(to_spdlog(level), "[{} {}] {}", who, component, text);
}

}  // namespace rueda::log
