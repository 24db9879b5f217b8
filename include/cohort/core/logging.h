#pragma once

#include <string>

namespace cohort::logging {

// Severity of a log line. The level comes from COHORT_LOG (trace, debug, info, warn, error, off);
// the default is warn, which also stays, with a warning, when the word is unknown. Lines go to
// standard error with time, level and rank.
enum class Level { trace, debug, info, warn, error };

// Thread-safe.
void write(Level level, const std::string& message);
bool enabled(Level level);

inline void debug(const std::string& message) {
  write(Level::debug, message);
}
inline void info(const std::string& message) {
  write(Level::info, message);
}
inline void warn(const std::string& message) {
  write(Level::warn, message);
}
inline void error(const std::string& message) {
  write(Level::error, message);
}

}  // namespace cohort::logging
