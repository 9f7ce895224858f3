// Log facade over spdlog: one line on stderr per record, with time (unless hidden), level, rank and
// component.
//
//   [2026-11-20 12:00:00.123] [W] [rank 1/4 coordinator] allreduce 'fc1.weight': still waiting for
//   rank 3
//
// Threads: any. init_log may be called again (after a re-init the rank may differ).
#pragma once

#include <string>

#include <spdlog/fmt/fmt.h>

#include "collectives/base/types.h"

namespace rueda::log {

enum class Level { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// `level` as in RUEDA_LOG_LEVEL; anything else is taken as warning. who: "rank 1/4" or "ruedarun".
void init_log(const std::string& level, const std::string& who, bool hide_time = false);
bool enabled(Level level);
void write(Level level, const char* component, const std::string& text);

template <typename... Args>
void print(Level level, const char* component, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, component, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace rueda::log

#define RUEDA_DEBUG(component, ...) \
  ::rueda::log::print(::rueda::log::Level::kDebug, component, __VA_ARGS__)
#define RUEDA_INFO(component, ...) \
  ::rueda::log::print(::rueda::log::Level::kInfo, component, __VA_ARGS__)
#define RUEDA_WARN(component, ...) \
  ::rueda::log::print(::rueda::log::Level::kWarning, component, __VA_ARGS__)
#define RUEDA_ERROR(component, ...) \
  ::rueda::log::print(::rueda::log::Level::kError, component, __VA_ARGS__)
